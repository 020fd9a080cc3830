"""Standard input of a job: a script goes to every rank, anything else to rank 0 or to those asked for."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, PYTHON, environment

from horovod.launch.standard_input import reads_a_script

MANY = os.environ.get("FARANDOLE_FULL_MATRIX") == "1"
pytestmark = pytest.mark.timeout(180)
LIMIT_S = 120.0

SCRIPT = b"""
import os, sys
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], sys.argv, flush=True)
"""
LOUD = b"x = 1\n" * 50_000 + SCRIPT  # more than a pipe takes
COUNTS = "import os, sys; print('rank', os.environ['HOROVOD_RANK'], 'reads', len(sys.stdin.buffer.read()))"

MPIRUN = ("--launcher", "mpirun", "--mpi-args=--allow-run-as-root --oversubscribe")
WAYS: dict[str, tuple[str, ...]] = {"local": (), "elastic": ("--min-np", "2"), "mpirun": MPIRUN}


def run(
    *words: str, given: bytes | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, "-np", "2", *words],
        env=environment(),
        cwd=folder,
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )


def said(done: subprocess.CompletedProcess[bytes], status: int = 0) -> list[str]:
    """Output of the ranks, by rank."""
    assert done.returncode == status, done.stdout.decode()
    lines = done.stdout.decode().splitlines()
    return sorted(line.partition(">:")[2] for line in lines if "<stdout>:" in line)


@pytest.mark.parametrize("way", WAYS)
def test_script_runs_in_every_rank(way: str) -> None:
    done = run(*WAYS[way], PYTHON, "-", "word", given=LOUD)
    assert said(done) == [f"rank {rank} of 2 ['-', 'word']" for rank in range(2)]


@pytest.mark.parametrize(
    "command", [(PYTHON,), (PYTHON, "-u"), (PYTHON, "/dev/stdin"), ("env", "A=1", PYTHON, "-")]
)
def test_each_way_to_name_a_script_on_standard_input(command: Sequence[str]) -> None:
    assert len(said(run(*command, given=SCRIPT))) == 2


def test_script_of_a_shell_runs_in_every_rank() -> None:
    done = run("bash", "-s", "word", given=b'echo "$HOROVOD_RANK $1"\n')
    assert said(done) == ["0 word", "1 word"]


@pytest.mark.parametrize("way", [*WAYS] if MANY else ["local", "mpirun"])
def test_rank_0_reads_what_is_no_script_and_others_find_its_end(way: str) -> None:
    data = bytes(range(256)) * 2000
    done = run(*WAYS[way], PYTHON, "-c", COUNTS, given=data)
    read = 0 if way == "elastic" else len(data)
    assert said(done) == [f"rank 0 reads {read}", "rank 1 reads 0"]
    assert (b"standard input goes to no rank of an elastic job" in done.stdout) == (way == "elastic")


@pytest.mark.parametrize("way", [*WAYS] if MANY else ["local"])
def test_all_ranks_or_none_read_on_request(way: str) -> None:
    data = bytes(1_000_000)
    done = run(*WAYS[way], "--stdin", "all", PYTHON, "-c", COUNTS, given=data)
    assert said(done) == ["rank 0 reads 1000000", "rank 1 reads 1000000"]
    done = run(*WAYS[way], "--stdin", "none", PYTHON, "-c", COUNTS, given=data)
    assert said(done) == ["rank 0 reads 0", "rank 1 reads 0"]


def test_nothing_to_run_is_an_error() -> None:
    done = run(PYTHON, "-", given=b"")
    assert done.returncode == 2
    assert b"takes its script from standard input, and that is empty" in done.stdout
    done = run(PYTHON)
    assert done.returncode == 2
    # As nohup leaves it: open for writing only.
    line = f"exec {' '.join(COMMAND)} {PYTHON} - 0>/dev/null"
    said_by = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, check=False)
    assert said_by.returncode == 2
    assert b"that is empty: nothing would run" in said_by.stderr
    assert b"Traceback" not in said_by.stderr


# Says when the launcher waits for standard input.
TELLS_THAT_IT_WAITS = f"""
import os, select, sys
from horovod.runner.launch import run_commandline
waits = select.select
def tell_and_wait(read, *others):
    if 0 in read:
        os.write(2, b"waits\\n")
    return waits(read, *others)
select.select = tell_and_wait
sys.argv[1:] = ["-np", "1", {PYTHON!r}, "-"]
sys.exit(run_commandline())
"""


def test_a_script_that_does_not_let_its_readers_wait_is_awaited() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    with subprocess.Popen(
        [PYTHON, "-c", TELLS_THAT_IT_WAITS],
        env=environment(),
        stdin=ours,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(ours)
        assert process.stderr is not None
        assert process.stderr.readline() == b"waits\n"
        os.write(theirs, b"print('ran')\n")
        os.close(theirs)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    assert b"ran" in stdout


def test_a_script_that_is_far_too_long_is_refused() -> None:
    done = run(PYTHON, "-", given=b"#" * ((64 << 20) + 1))
    assert done.returncode == 2
    assert b"more than 64 MiB" in done.stdout


def test_rank_that_never_reads_does_not_keep_the_job() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        done = subprocess.run(
            [*COMMAND, "-np", "2", "sh", "-c", "echo went on"],
            env=environment(),
            stdin=endless.stdout,
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
        endless.kill()
    assert done.returncode == 0
    assert done.stdout.count(b"went on") == 2


def test_rank_0_reads_what_is_typed_until_its_end() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "-np", "2", PYTHON, "-c", COUNTS],
        env=environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        os.write(ours, b"hello\n\x04")
        stdout, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)
        os.close(ours)
    assert process.returncode == 0, stdout
    assert b"rank 0 reads 6" in stdout
    assert b"rank 1 reads 0" in stdout


def test_closed_standard_input_is_an_empty_one() -> None:
    line = f'exec {" ".join(COMMAND)} -np 2 {PYTHON} -c "{COUNTS}" <&-'
    done = subprocess.run(
        ["sh", "-c", line], env=environment(), stdout=subprocess.PIPE, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0
    assert done.stdout.count(b"reads 0") == 2


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -", True),
        ("python", True),
        ("python3.11 -u -X dev -W error", True),
        ("python -X dev train.py", False),
        ("/usr/bin/python3 -u - --lr 1", True),
        ("python train.py -", False),
        ("python -m train -", False),
        ("python -c print(1)", False),
        ("python --version", False),
        ("numactl -N 0 python -", True),
        ("./train.sh python", False),
        ("bash", True),
        ("bash -s a", True),
        ("bash -euo pipefail -s", True),
        ("bash -c read", False),
        ("bash -lc read", False),
        ("sh -x train.sh", False),
        ("sh /dev/stdin", True),
        ("train", False),
        ("cat -", False),
    ],
)
def test_which_commands_read_a_script(command: str, expected: bool) -> None:
    assert reads_a_script(command.split()) is expected
