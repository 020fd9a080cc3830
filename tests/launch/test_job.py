"""Whole jobs with tiny programs: output, environment, files and exit status."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, LIMIT_S, PYTHON, environment, horovodrun, running

from horovod.bootstrap.place.cores import usable_cores


def lines(output: bytes) -> list[str]:
    return sorted(output.decode().splitlines())


def test_every_rank_runs_once_with_its_place() -> None:
    pairs = [f"$HOROVOD_{scope}RANK/$HOROVOD_{scope}SIZE" for scope in ("", "LOCAL_", "CROSS_")]
    show = f"echo {' '.join(pairs)} $HOROVOD_HOSTNAME"
    done = horovodrun("-np", "8", "sh", "-c", show)
    assert done.returncode == 0
    assert lines(done.stdout) == [f"[{rank}]<stdout>:{rank}/8 {rank}/8 0/1 localhost" for rank in range(8)]
    assert done.stderr == b""


def test_more_slots_than_processes_start_no_more_processes() -> None:
    done = horovodrun("-np", "2", "-H", "localhost:4", "sh", "-c", "echo $HOROVOD_SIZE")
    assert lines(done.stdout) == ["[0]<stdout>:2", "[1]<stdout>:2"]


def test_two_names_of_this_machine_are_two_hosts() -> None:
    show = "echo $HOROVOD_HOSTNAME $HOROVOD_LOCAL_RANK $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE"
    done = horovodrun("-np", "3", "-H", "localhost:1,127.0.0.1:2", "sh", "-c", show)
    assert lines(done.stdout) == [
        "[0]<stdout>:localhost 0 0/2",
        "[1]<stdout>:127.0.0.1 0 1/2",
        "[2]<stdout>:127.0.0.1 1 0/1",
    ]


def test_inherited_rank_variables_do_not_win() -> None:
    extra = {"HOROVOD_RANK": "7", "HOROVOD_SIZE": "9", "HOROVOD_CONTROLLER": "mpi", "HOROVOD_CYCLE_TIME": "5"}
    show = "echo $HOROVOD_RANK $HOROVOD_SIZE $HOROVOD_CONTROLLER $HOROVOD_CYCLE_TIME"
    assert horovodrun("-np", "1", "sh", "-c", show, extra=extra).stdout == b"[0]<stdout>:0 1 gloo 5\n"


def test_compute_threads_are_shared_out_unless_set() -> None:
    show = ("-np", "2", "sh", "-c", "echo $OMP_NUM_THREADS")
    expected = max(1, usable_cores()[0] // 2)
    assert horovodrun(*show).stdout.splitlines()[0].endswith(b":%d" % expected)
    assert horovodrun(*show, extra={"OMP_NUM_THREADS": "3"}).stdout.splitlines()[0].endswith(b":3")


def test_arguments_and_environment_of_any_bytes_arrive_unchanged() -> None:
    show = "import os,sys; print(os.fsencode(sys.argv[1]), os.environb[b'ODD'])"
    word = b"a b\n'\"$HOME \xff\xc3\xbc"
    done = subprocess.run(
        [
            *COMMAND,
            "-np",
            "1",
            PYTHON,
            "-c",
            show,
            word,
        ],
        env={**{os.fsencode(k): os.fsencode(v) for k, v in environment().items()}, b"ODD": word},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.decode() == f"[0]<stdout>:{word!r} {word!r}\n"


def test_ranks_have_no_standard_input_and_no_descriptor_of_ours_but_that_for_their_words() -> None:
    look = """
import os, sys
words = int(os.environ["HOROVOD_STARTER"].split(",")[0])
print(repr(sys.stdin.read()), sorted(set(map(int, os.listdir("/proc/self/fd"))) - {words})[:-1])
"""
    assert horovodrun("-np", "2", PYTHON, "-c", look).stdout.splitlines()[0].endswith(b":'' [0, 1, 2]")


def test_ranks_have_default_signal_handling() -> None:
    # A program that writes to a closed pipe must end as it does in a shell.
    done = horovodrun("-np", "1", "sh", "-c", "grep SigIgn: /proc/$$/status")
    ignored = int(done.stdout.split()[-1], 16)
    assert not [signum for signum in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> signum - 1 & 1]


def test_working_directory_is_the_launchers(tmp_path: Path) -> None:
    done = horovodrun("-np", "1", "pwd", cwd=tmp_path)
    assert done.stdout.decode() == f"[0]<stdout>:{tmp_path}\n"


def test_standard_output_and_error_stay_apart() -> None:
    done = horovodrun("-np", "1", "sh", "-c", "echo out; echo err >&2; printf end; printf END >&2")
    assert done.stdout == b"[0]<stdout>:out\n[0]<stdout>:end"
    assert done.stderr == b"[0]<stderr>:err\n[0]<stderr>:END"


def test_lines_of_ranks_never_mix() -> None:
    body = "x" * 300
    program = f"for i in range(500):\n print(i, '{body}', end='\\n', flush=True)"
    done = horovodrun("-np", "4", PYTHON, "-c", program)
    found = done.stdout.decode().splitlines()
    for rank in range(4):
        mine = [line for line in found if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}]<stdout>:{number} {body}" for number in range(500)]
    assert len(found) == 2000


def test_progress_bars_of_two_ranks_share_no_line() -> None:
    program = "import time\nfor i in range(50): print(f'\\r{i}%', end='', flush=True); time.sleep(0.01)"
    shown = horovodrun("-np", "2", PYTHON, "-c", program).stdout.decode()
    for line in shown.split("\n"):
        assert len({part.partition(">:")[0] for part in line.split("\r") if part}) <= 1, line
    assert {f"[{rank}]<stdout>:49%" for rank in (0, 1)} <= set(re.split("[\r\n]", shown))


def test_megabytes_of_output_arrive_complete() -> None:
    program = "import sys; sys.stdout.write(('y' * 99 + '\\n') * 100_000)"
    started = time.monotonic()
    done = horovodrun("-np", "2", PYTHON, "-c", program)
    assert time.monotonic() - started < 15
    assert done.stdout.count(b"<stdout>:" + b"y" * 99 + b"\n") == 200_000
    assert len(done.stdout) == 200_000 * (100 + len("[0]<stdout>:"))


def test_bytes_that_are_not_utf8_pass_through() -> None:
    done = horovodrun("-np", "1", "printf", r"\377\376 \303\274\n")
    assert done.stdout == b"[0]<stdout>:\xff\xfe \xc3\xbc\n"


def test_line_is_visible_at_once_while_the_job_runs() -> None:
    with running("-np", "2", "sh", "-c", "echo ready; exec sleep 60") as job:
        assert sorted(job.lines(2)) == ["[0]<stdout>:ready", "[1]<stdout>:ready"]


def test_timestamps_come_before_the_prefix() -> None:
    done = horovodrun("-np", "1", "-prefix-timestamp", "echo", "text")
    stamp, _, text = done.stdout.decode().partition("[0]<stdout>:")
    time.strptime(stamp)
    assert text == "text\n"


@pytest.mark.parametrize(("processes", "first"), [(1, "rank.0"), (11, "rank.00")])
def test_output_is_also_kept_in_files(processes: int, first: str, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "logs"
    for attempt in ("earlier and longer", "text"):
        done = horovodrun("-np", str(processes), "--output-filename", str(directory), "echo", attempt)
        assert done.returncode == 0
    assert len(list(directory.iterdir())) == processes
    assert (directory / first / "stdout").read_text() == "[0]<stdout>:text\n"
    assert (directory / first / "stderr").read_bytes() == b""
    assert done.stdout.count(b"text") == processes


def test_one_rank_is_shown_and_all_are_kept(tmp_path: Path) -> None:
    words = ["-np", "3", "--output-filename", str(tmp_path), "--show-ranks", "1"]
    done = horovodrun(
        *words, "sh", "-c", "echo $HOROVOD_RANK; [ $HOROVOD_RANK != 2 ] || { echo why >&2; exit 3; }"
    )
    assert done.stdout == b"[1]<stdout>:1\n"
    for rank in range(3):
        assert (tmp_path / f"rank.{rank}" / "stdout").read_text() == f"[{rank}]<stdout>:{rank}\n"
    assert done.returncode == 3
    assert b"<stderr>:" not in done.stderr
    assert done.stderr.decode().endswith("horovodrun: its last lines:\n    why\n")


def test_viewer_that_goes_away_does_not_end_the_job(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    script = f"seq 20000; touch {tmp_path}/done.$HOROVOD_RANK"
    try:
        done = subprocess.run(
            [*COMMAND, "-np", "2", "sh", "-c", script],
            env=environment(),
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        os.close(write)
    assert done.returncode == 0
    assert done.stderr.count(b"cannot write to standard output any more (Broken pipe); the job goes on") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done.0", "done.1"]


def test_closed_standard_descriptors_do_no_harm(tmp_path: Path) -> None:
    words = " ".join((*COMMAND, "-np", "2", "--output-filename", str(tmp_path), "echo", "text"))
    done = subprocess.run(
        ["sh", "-c", f"{words} <&- >&- 2>&-"], env=environment(), timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "rank.1" / "stdout").read_text() == "[1]<stdout>:text\n"


def test_ranks_meet_at_the_store() -> None:
    program = """
import os
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.place.store_address import read_store
rank, job = int(os.environ["HOROVOD_RANK"]), os.environ["HOROVOD_JOB_ID"]
key = bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"])
with StoreClient(read_store(os.environ), key, 10.0, f"rank {rank}", job=job) as store:
    store.set(f"said/{rank}", rank)
    print(store.get(f"said/{1 - rank}", 10.0))
"""
    done = horovodrun("-np", "2", PYTHON, "-c", program)
    assert lines(done.stdout) == ["[0]<stdout>:1", "[1]<stdout>:0"], done.stderr.decode()


def test_key_is_in_the_environment_of_ranks_only() -> None:
    program = """
import os, pathlib
key = os.environ["HOROVOD_SECRET_KEY"]
assert len(bytes.fromhex(key)) == 32
agent = os.getppid()
launcher = int(pathlib.Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
for pid in (os.getpid(), agent, launcher):
    assert key.encode() not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
for pid in (agent, launcher):
    assert key.encode() not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
print(key)
"""
    done = horovodrun("--verbose", "-np", "1", PYTHON, "-c", program)
    assert done.returncode == 0, done.stderr.decode()
    key = done.stdout.partition(b">:")[2].strip()
    assert key not in done.stderr


def test_two_jobs_at_once_have_nothing_in_common() -> None:
    names = ["HOROVOD_SECRET_KEY", "HOROVOD_JOB_ID", "HOROVOD_STORE"]
    show = "echo " + " ".join(f"${name}" for name in names) + "; exec sleep 60"
    with running("-np", "2", "sh", "-c", show) as one, running("-np", "2", "sh", "-c", show) as other:
        first, second = ({line.partition(">:")[2] for line in job.lines(2)} for job in (one, other))
    assert len(first) == len(second) == 1  # the ranks of a job agree
    for mine, theirs in zip(first.pop().split(), second.pop().split(), strict=True):
        assert mine != theirs


def test_verbose_narrates_on_standard_error() -> None:
    done = horovodrun("--verbose", "-np", "2", "sh", "-c", "exit 0")
    said = done.stderr.decode()
    steps = ["this machine", "serving the store", "OMP_NUM_THREADS", "starting 2 x sh -c 'exit 0'"]
    steps += ["rank 1 runs as process", "rank 0 exited with status 0", "nothing of the job runs"]
    for step in steps:
        assert step in said
    assert done.stdout == b""


@pytest.mark.parametrize("words", ["--version", "--check-build", "--completion bash", "--dry-run -np 4 true"])
def test_what_is_shown_may_be_read_in_part_only(words: str) -> None:
    """As `horovodrun --check-build | head -1` does."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone, open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "horovod.runner.launch", *words.split()]
        unread, unwritten = (
            subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
            for stdout in (gone, full)
        )
    assert (unread.returncode, unread.stderr) == (0, b"")
    said = b"horovodrun: Cannot write to standard output: No space left on device.\n"
    assert (unwritten.returncode, unwritten.stderr) == (1, said)


def test_a_script_is_not_found_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    command = (
        f"mkdir {gone}; cd {gone}; rmdir {gone}; {sys.executable} -m horovod.runner.launch -np 1 train.py"
    )
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 127
    assert b"no such file in this folder, which has been deleted" in done.stderr


def test_an_elastic_job_does_not_begin_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    run = f"{sys.executable} -m horovod.runner.launch -np 1 --min-np 1 true"
    done = subprocess.run(
        f"mkdir {gone}; cd {gone}; rmdir {gone}; {run}",
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"cannot be found (No such file or directory): was it deleted?" in done.stderr
    assert b"Traceback" not in done.stderr


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "horovod.runner.launch", *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-np", "2", "sh", "-c", "exit 3"], 3, b"exited with status 3"),
        (["-np", "2", "--min-np", "1", "sh", "-c", "exit 3"], 3, b"exited with status 3"),
        (["-np", "1", "--host-discovery-script", "echo broken >&2; exit 4", "true"], 1, b"status 4: broken"),
    ],
    ids=["ranks", "elastic", "discovery"],
)
def test_the_ends_of_children_are_heard_of_below_a_program_that_ignores_them(
    words: list[str], status: int, said: bytes
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, *words],
        env=environment(),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["no-such-command"], 127, "The command no-such-command cannot be run: not found."),
        (["./no/such/file"], 127, "The command ./no/such/file cannot be run: not found."),
        (["/"], 126, "The command / cannot be run: permission denied."),
        (["./plain.py"], 126, "Did you mean: python ./plain.py?"),
        (["plain.py"], 127, "not found on PATH, but in this folder. Did you mean: python plain.py?"),
        (["gone.py"], 127, "not found. Did you mean: python gone.py? There is no such file in "),
        (["sh plain.py"], 127, "not found. Did you mean several words? Leave out the quotes: sh plain.py"),
        (["no-such-program plain.py"], 127, "not found. Did you mean: python no-such-program plain.py?"),
        (["text"], 127, "not found on PATH, but in this folder. Did you mean: ./text?"),
        (["./script"], 126, "permission denied. Is it a script? Then make it executable: chmod +x ./script"),
        (["./text"], 126, "neither a program nor a script"),
        (["./lost"], 127, "its interpreter was not found"),
        (["-H", "localhost:1", "true"], 2, "2 processes were requested, but the hosts have 1 slot ("),
        (["--min-np", "3", "true"], 2, "--min-np 3 is more than -np 2"),
        (["--nproc-per-node", "2", "plain.py"], 2, "which is torchrun's. Here: -np N"),
        (["-H", "localhost", "true"], 2, "'localhost' in it is not host:slots"),
        (["-H", "no.such.host.invalid:2", "true"], 1, "no.such.host.invalid: ssh"),
        (["--output-filename", "./text", "true"], 1, "cannot be kept in text/rank.0/stdout"),
        (["--nonsense", "true"], 2, "--nonsense"),
        ([], 2, "command to run is missing"),
    ],
)
def test_what_cannot_be_started_is_explained(
    words: list[str], status: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text("print()\n")
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "text").write_text("just text\n")
    (tmp_path / "text").chmod(0o755)
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    done = horovodrun("-np", "2", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, b"")
    said = done.stderr.decode()
    assert said.startswith("horovodrun: ")
    assert message in said
    assert "Traceback" not in said
    assert said.count(message) == 1


def test_remote_host_that_is_not_needed_is_no_obstacle() -> None:
    assert horovodrun("-np", "1", "-H", "localhost:1,192.0.2.1:4", "true").returncode == 0


def test_version_is_that_of_the_interface_and_ours() -> None:
    done = horovodrun("--version")
    assert done.returncode == 0
    version = importlib.metadata.version("farandole")
    assert done.stdout.decode() == f"0.28.1 (Farandole {version})\n"


def test_help_shows_groups_and_examples() -> None:
    done = horovodrun("--help")
    assert done.returncode == 0
    for part in ("usage: horovodrun [-np N]", "examples:", "stall check:", "--output-filename DIR"):
        assert part in done.stdout.decode()


def test_each_rank_may_see_one_device_only() -> None:
    words = ["-np", "3", "--device-per-rank", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    done = horovodrun(*words, extra={"CUDA_VISIBLE_DEVICES": "5,7"})
    assert sorted(done.stdout.decode().splitlines()) == [
        "[0]<stdout>:5",
        "[1]<stdout>:7",
        "[2]<stdout>:5",
    ]
    assert done.stderr.decode() == (
        "horovodrun: host localhost has 2 devices for 3 ranks: the first ones are used more than once\n"
    )
    done = horovodrun(*words, extra={"CUDA_VISIBLE_DEVICES": ""})
    assert "host localhost has no device for 3 ranks: --device-per-rank changes nothing there" in (
        done.stderr.decode()
    )


def test_all_ranks_see_what_the_launcher_sees_unless_asked() -> None:
    extra = {"CUDA_VISIBLE_DEVICES": "5,7"}
    done = horovodrun("-np", "2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", extra=extra)
    assert sorted(done.stdout.decode().splitlines()) == ["[0]<stdout>:5,7", "[1]<stdout>:5,7"]


def test_what_was_set_in_vain_is_told_once_for_a_job() -> None:
    rank = """
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
for _ in range(2):
    lifecycle.start(core=CORE)
    lifecycle.stop()
"""
    extra = {"HOROVOD_FUSION_TRESHOLD": "0", "HOROVOD_GPU_OPERATIONS": "NCCL"}
    words = ["-np", "2", "--autotune", "--hierarchical-allreduce", "--no-torus-allreduce"]
    done = horovodrun(*words, PYTHON, "-c", rank, extra=extra, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.decode().splitlines() == [
        "[0]<stderr>:HOROVOD_HIERARCHICAL_ALLREDUCE=1 has no effect: the way of the bytes follows from who "
        "shares memory, host by host; the results are the same.",
        "[0]<stderr>:HOROVOD_AUTOTUNE=1 has no effect: this version does not tune itself; "
        "HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME can be set by hand.",
        "[0]<stderr>:HOROVOD_FUSION_TRESHOLD is not read. Did you mean HOROVOD_FUSION_THRESHOLD?",
    ]
    quiet = horovodrun(
        *words,
        "--log-level",
        "ERROR",
        PYTHON,
        "-c",
        rank,
        extra=extra,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert quiet.stderr == b""


def test_nothing_heavy_is_imported() -> None:
    program = "import json, sys, horovod.runner.launch; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, timeout=LIMIT_S, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert not loaded & {
        "torch",
        "numpy",
        "tensorflow",
        "jax",
        "mxnet",
        "cloudpickle",
        "psutil",
        "ctypes",
        "horovod._core",
    }
    assert not loaded & {  # what only ranks, or jobs of other launchers, need
        "horovod.bootstrap.network.routes",
        "horovod.bootstrap.place.topology",
        "horovod.launch.external.program",
        "horovod.launch.launchers.ssh",
    }


def test_small_job_costs_little_processor_time() -> None:
    # Processor time, because other work on the machine delays the end; a heavy import shows in both.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        assert horovodrun("-np", "2", "true").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s / 3 < 0.4


def test_many_ranks_raise_the_limit_on_descriptors_for_the_launcher_only() -> None:
    words = " ".join((*COMMAND, "-np", "40", "sh", "-c", "'ulimit -Sn'"))
    done = subprocess.run(
        ["sh", "-c", f"ulimit -Sn 128; {words}"],
        env=environment(),
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert lines(done.stdout) == sorted(f"[{rank}]<stdout>:128" for rank in range(40))


@pytest.fixture
def another_python(tmp_path: Path) -> Path:
    """A folder with a command ``python`` that does not find our package, as outside a virtual environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    (folder / "python").chmod(0o755)
    (folder / "train").write_text("#!/usr/bin/env python\nimport horovod.torch\n")
    (folder / "train").chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "words", [["-c", "import horovod.torch"], ["-m", "horovod.bench"], ["-m", "horovod"]], ids=" ".join
)
def test_the_wrong_python_is_named_and_the_right_one(words: list[str], another_python: Path) -> None:
    extra = {"PATH": f"{another_python}:{os.environ['PATH']}"}
    done = horovodrun("-np", "1", "python", *words, extra=extra)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert (
        f"python means {another_python}/python here, which has no horovod; {sys.executable} has it." in said
    )
    done = horovodrun("-np", "1", "train", extra=extra)
    assert f"The Python that runs {another_python}/train has no horovod; {sys.executable} has it." in (
        done.stderr.decode()
    )


def test_a_part_of_the_package_that_is_missing_is_no_matter_of_the_python(another_python: Path) -> None:
    (another_python / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    extra = {"PATH": f"{another_python}:{os.environ['PATH']}"}
    done = horovodrun("-np", "1", "python", "-c", "import horovod.no_such_part", extra=extra)
    assert b"No module named 'horovod.no_such_part'" in done.stderr
    assert b"has no horovod" not in done.stderr
