"""Jobs that another launcher starts, with launchers of our own making that do not keep their word."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.launch.launching import LIMIT_S, PYTHON, Watched, horovodrun, running

# `mpirun` as seen from outside: says its version, starts what it is told as often as -np says, and waits.
# What stands at BEFORE and AFTER makes it one that does something else.
_MPIRUN = """\
[ "$1" = --version ] && { echo "mpirun (Open MPI) 4.1.4"; exit 0; }
count=$3; shift 3
while [ "$1" != "$PYTHON" ]; do shift; done
BEFORE
rank=0
while [ $rank -lt $count ]; do
  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$count "$@" &
  eval "rank_$rank=$!"; rank=$((rank + 1))
done
status=0; rank=0
while [ $rank -lt $count ]; do
  eval "wait \\$rank_$rank"; code=$?; [ $code -ne 0 ] && status=$code; rank=$((rank + 1))
done
AFTER
exit $status
"""

Launcher = Callable[..., dict[str, str]]


def fake_mpirun(
    folder: Path, before: str = "", after: str = "", name: str = "mpirun", text: str = _MPIRUN
) -> dict[str, str]:
    """Make a launcher; the environment that has it on its path."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\n" + text.replace("BEFORE", before).replace("AFTER", after))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": PYTHON}


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """Makes a launcher; the environment that has it on its path."""
    return partial(fake_mpirun, tmp_path / "bin")


def run(extra: dict[str, str], *words: str, processes: int = 2) -> subprocess.CompletedProcess[bytes]:
    return horovodrun("-np", str(processes), "--mpi", *words, extra=extra)


def test_ranks_know_their_places_and_output_is_as_ever(launcher: Launcher, tmp_path: Path) -> None:
    numbers = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_SIZE")
    show = f"echo e >&2; echo {' '.join(f'$HOROVOD_{name}' for name in numbers)}"
    done = run(launcher(), "--output-filename", str(tmp_path / "out"), "sh", "-c", show)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:0 2 0 2 1", b"[1]<stdout>:1 2 1 2 1"]
    assert sorted(done.stderr.splitlines()) == [b"[0]<stderr>:e", b"[1]<stderr>:e"]
    assert (tmp_path / "out" / "rank.1" / "stdout").read_text() == "[1]<stdout>:1 2 1 2 1\n"


def test_each_rank_may_see_one_device_only(launcher: Launcher) -> None:
    mask = {"CUDA_VISIBLE_DEVICES": "5,7"}
    done = run(launcher() | mask, "--device-per-rank", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", processes=3)
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:5", b"[1]<stdout>:7", b"[2]<stdout>:5"]
    assert done.stderr.count(b" has 2 devices for 3 ranks: the first ones are used more than once\n") == 1


def test_one_rank_is_shown_and_all_are_kept(launcher: Launcher, tmp_path: Path) -> None:
    words = ["--output-filename", str(tmp_path / "out"), "--show-ranks", "1"]
    done = run(launcher(), *words, "sh", "-c", "echo $HOROVOD_RANK")
    assert (done.returncode, done.stdout) == (0, b"[1]<stdout>:1\n"), done.stderr.decode()
    for rank in (0, 1):
        assert (tmp_path / "out" / f"rank.{rank}" / "stdout").read_text() == f"[{rank}]<stdout>:{rank}\n"


def test_variables_of_an_outer_job_are_not_taken_for_the_launchers(launcher: Launcher) -> None:
    outer = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "HOROVOD_RANK": "5", "RANK": "6"}
    done = run(launcher() | outer, "-H", "localhost:2", "sh", "-c", "echo $HOROVOD_RANK of $HOROVOD_SIZE")
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:0 of 2", b"[1]<stdout>:1 of 2"]


def test_first_failing_rank_decides_the_status_and_ends_the_others(launcher: Launcher) -> None:
    command = "if [ $HOROVOD_RANK = 1 ]; then echo bad >&2; exit 7; fi; exec sleep 60"
    done = run(launcher(after="exit 0"), "sh", "-c", command)
    assert done.returncode == 7
    said = done.stderr.decode()
    assert "rank 1 on" in said
    assert "exited with status 7" in said
    assert "the other rank was ended because of it" in said
    assert said.endswith("its last lines:\n    bad\n")


def test_rank_that_a_signal_ends_is_told(launcher: Launcher) -> None:
    done = run(launcher(), "sh", "-c", '[ "$HOROVOD_RANK" = 0 ] && kill -9 $$; exec sleep 60')
    assert done.returncode == 137
    assert b"rank 0 on" in done.stderr
    assert b"was killed by SIGKILL (status 137)" in done.stderr


# When both ranks are up the launcher ends rank 0, and goes on when its command is gone: it is told then.
_END_RANK_0 = (
    "until [ -s $SEEN/0 ] && [ -s $SEEN/1 ]; do sleep 0.05; done; kill $rank_0; "
    "while kill -0 $(cat $SEEN/0); do sleep 0.05; done 2>&-; sleep 0.1; "
)
_UP = "echo $$ > $SEEN/$HOROVOD_RANK; "


def end_rank_0(launcher: Launcher, folder: Path, then: str = "", command: str = "") -> tuple[int, str]:
    """Status and messages of a job whose launcher ends rank 0, and does something ``then``."""
    text = _MPIRUN.replace("status=0;", f"{_END_RANK_0}{then}status=0;")
    seen = folder / "seen"
    seen.mkdir()
    done = run(launcher(text=text) | {"SEEN": str(seen)}, "sh", "-c", f"{_UP}{command}exec sleep 60")
    return done.returncode, done.stderr.decode()


def test_a_rank_that_the_launcher_ends_is_not_the_cause_where_another_is_lost(
    launcher: Launcher, tmp_path: Path
) -> None:
    # So does Open MPI 4 when a host dies: rank 0 tells its end before the store misses rank 1.
    status, said = end_rank_0(launcher, tmp_path, then="kill -9 $rank_1; ")
    assert status not in (0, 143), said
    assert "rank 1 on" in said
    assert "did not report its end" in said


def test_a_rank_that_the_launcher_ends_is_the_cause_where_nobody_is_lost(
    launcher: Launcher, tmp_path: Path
) -> None:
    status, said = end_rank_0(launcher, tmp_path)
    assert status == 143, said
    assert "rank 0 on" in said
    assert "SIGTERM" in said
    assert "the other rank was ended because of it" in said


def test_a_rank_that_the_launcher_ends_is_the_cause_where_another_fails_later(
    launcher: Launcher, tmp_path: Path
) -> None:
    fails = "[ $HOROVOD_RANK = 0 ] && exec sleep 60; until [ -e $SEEN/go ]; do sleep 0.05; done; exit 7; "
    status, said = end_rank_0(launcher, tmp_path, then="touch $SEEN/go; ", command=fails)
    assert status == 143, said
    assert "rank 0 on" in said


def test_command_that_cannot_be_run_is_told_once(launcher: Launcher) -> None:
    done = run(launcher(), "no-such-command")
    assert done.returncode == 127
    assert done.stderr.count(b"The command no-such-command cannot be run: not found.") == 1


@pytest.mark.parametrize(
    ("before", "status", "message"),
    [
        ("exit 0", 1, b"mpirun exited with status 0 before all ranks had started"),
        (
            "echo no such host >&2; exit 213",
            213,
            b"mpirun exited with status 213 before all ranks had started",
        ),
    ],
)
def test_success_of_the_launcher_is_not_that_of_the_ranks(
    before: str, status: int, message: bytes, launcher: Launcher
) -> None:
    done = run(launcher(before=before), "--start-timeout", "20", "true")
    assert done.returncode == status
    assert message in done.stderr


def test_launcher_that_starts_too_few_is_not_waited_for(launcher: Launcher) -> None:
    done = run(launcher(before="count=1"), "--start-timeout", "6", "true", processes=3)
    assert done.returncode != 0
    assert b"ranks 1, 2 did not come" in done.stderr
    assert b"within 6 s" in done.stderr


def test_two_processes_of_one_rank_are_found(launcher: Launcher) -> None:
    twice = 'export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2; "$@" & sleep 1; "$@"; wait; exit 0'
    done = run(launcher(before=twice), "--start-timeout", "8", "true")
    assert done.returncode != 0
    assert b"There are two processes of rank 0" in done.stderr


def test_launcher_that_vanishes_leaves_no_ranks(launcher: Launcher) -> None:
    with running(
        "-np", "2", "--mpi", "sh", "-c", "echo $$; exec sleep 60", extra=launcher(before="echo $$ >&2")
    ) as job:
        pids = job.numbers(2)
        line = job.process.stderr
        assert line is not None
        with Watched(*pids) as watched:
            os.kill(int(line.readline()), signal.SIGKILL)
            status, _, stderr = job.finish()
            assert watched.still_running(LIMIT_S) == []
    assert status == 137
    assert b"ranks 0, 1 on" in stderr or b"ended because of it" in stderr or b"did not report" in stderr


def test_ranks_end_when_horovodrun_is_killed(launcher: Launcher) -> None:
    words = ("-np", "2", "--mpi", "sh", "-c", "echo $$; exec sleep 60")
    with running(*words, extra=launcher()) as job, Watched(*job.numbers(2)) as watched:
        job.signal(signal.SIGKILL)
        assert watched.still_running(LIMIT_S) == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_ranks(signum: signal.Signals, launcher: Launcher) -> None:
    program = f"""
import os, signal, time
def end(number, frame):
    print("got", number, flush=True)
    os._exit(0)
signal.signal({int(signum)}, end)
print(os.getpid(), flush=True)
time.sleep(60)
"""
    words = ("-np", "2", "--mpi", PYTHON, "-c", program)
    with running(*words, extra=launcher()) as job, Watched(*job.numbers(2)) as watched:
        job.signal(signum)
        status, stdout, stderr = job.finish()
        assert watched.still_running(0.0) == []
    assert status == 128 + signum
    assert stdout.count(f"got {int(signum)}".encode()) == 2
    assert f"{signum.name} ended the job".encode() in stderr


def test_what_ranks_print_after_a_signal_is_not_lost(launcher: Launcher) -> None:
    program = """
import os, signal, time
def end(number, frame):
    for _ in range(20_000):
        os.write(1, b"x" * 99 + b"\\n")
    os._exit(0)
signal.signal(15, end)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""
    with running("-np", "2", "--mpi", PYTHON, "-c", program, extra=launcher()) as job:
        job.numbers(2)
        job.signal(signal.SIGTERM)
        status, stdout, _ = job.finish()
    assert status == 128 + signal.SIGTERM
    assert stdout.count(b"x") == 2 * 99 * 20_000


def test_failure_of_the_launcher_counts_though_all_ranks_succeeded(launcher: Launcher) -> None:
    done = run(launcher(after="exit 3"), "true")
    assert done.returncode == 3
    assert b"every rank reported success, but mpirun exited with status 3" in done.stderr


def test_ranks_elsewhere_than_asked_for_are_an_error(launcher: Launcher) -> None:
    done = run(launcher(), "-H", "localhost:1,127.0.0.1:1", "true")
    assert done.returncode == 1
    assert b"mpirun was asked for ranks at localhost:1,127.0.0.1:1, and started them at" in done.stderr


def test_jsrun_is_used_in_a_job_of_lsf_and_its_ranks_are_found(launcher: Launcher) -> None:
    text = """\
while [ "$1" != "$PYTHON" ]; do shift; done
JSM_NAMESPACE_SIZE=2; export JSM_NAMESPACE_SIZE
JSM_NAMESPACE_RANK=1 "$@" & JSM_NAMESPACE_RANK=0 "$@"; wait
"""
    extra = launcher(name="jsrun", text=text) | {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "localhost 2"}
    done = horovodrun("--binding-args=-n 2", "sh", "-c", "echo $HOROVOD_RANK of $HOROVOD_SIZE", extra=extra)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:0 of 2", b"[1]<stdout>:1 of 2"]
    assert b"hosts of LSF job 7: localhost:2" in done.stderr


def test_dry_run_shows_places_and_the_line_without_the_key(launcher: Launcher) -> None:
    done = run(launcher(), "-H", "a:1,b:1", "--dry-run", "train")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["rank", "host", "local", "rank", "cross", "rank"]
    assert [line.split()[1] for line in lines[1:3]] == ["a", "b"]
    words = shlex.split(lines[3])
    assert words[-6:-4] == [sys.executable, "-c"]
    assert "horovod.launch.rank_wrapper" in words[-4]
    assert words[-3:] == ["mpirun", "-:-:-", "train"]
    assert "SECRET" not in lines[3]


def test_no_mpirun_is_wrong_usage(tmp_path: Path) -> None:
    done = run({"PATH": str(tmp_path)}, "true")
    assert done.returncode == 2
    assert b"need mpirun, which is not on PATH" in done.stderr
