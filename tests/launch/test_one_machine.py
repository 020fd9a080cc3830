"""A job on one machine opens no port: whoever starts it, no process of it listens on TCP."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, LIMIT_S, environment

pytestmark = pytest.mark.timeout(90)

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
MPIEXEC = str(Path(__file__).parents[2] / ".venv-mpich" / "bin" / "mpiexec")
OF_MPI = {"mpirun", "prterun", "prted", "orted", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"}
LISTENS = "0A"
MARK = "TEST_ONE_MACHINE"

# Says when it comes to init() and when there is a world; a byte of a pipe lets it go on each time.
RANK = """
import os
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
folder = os.environ["TEST_FOLDER"]
go = os.open(f"{folder}/go", os.O_RDWR)
said = os.open(f"{folder}/said", os.O_RDWR)
def tell(word):
    os.write(said, f"{word}\\n".encode())
names = ("HOROVOD_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
rank = next(os.environ[name] for name in names if name in os.environ)
if rank == "1":
    tell("waits")
    assert os.read(go, 1)
runtime = lifecycle.start(core=CORE)
tell(f"formed {runtime.topology.size} {runtime.groups}")
assert os.read(go, 1)
lifecycle.stop()
"""
LIKE_TORCHRUN = """
import os, subprocess, sys
job = {"TORCHELASTIC_RUN_ID": str(os.getpid()), "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
       "TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]],
         env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
sys.exit(max(rank.wait(60) for rank in ranks))
"""
CALLS = """
import sys, horovod
def rank(script):
    exec(script, {})
horovod.run(rank, (sys.argv[1],), np=2)
"""
OPEN_MPI = ("--allow-run-as-root", "--oversubscribe")
BY_MPIRUN = (*COMMAND, "-np", "2", "--launcher", "mpirun", f"--mpi-args={' '.join(OPEN_MPI)}")
WAYS: Mapping[str, tuple[str, ...]] = {
    "horovodrun": (*COMMAND, "-np", "2", sys.executable, "-c", RANK),
    "horovod.run": (sys.executable, "-c", CALLS, RANK),
    "torchrun": (sys.executable, "-c", LIKE_TORCHRUN, RANK),
    "mpirun": (MPIRUN, *OPEN_MPI, "-np", "2", sys.executable, "-c", RANK),
    "mpiexec": (MPIEXEC, "-n", "2", sys.executable, "-c", RANK),
    "horovodrun by mpirun": (*BY_MPIRUN, sys.executable, "-c", RANK),
}


class Started:
    """A job whose ranks run ``RANK``."""

    def __init__(self, folder: Path, command: tuple[str, ...]) -> None:
        self._mark = secrets.token_hex(16)
        for name in ("go", "said"):
            os.mkfifo(folder / name)
        self._go, self._said = (os.open(folder / name, os.O_RDWR) for name in ("go", "said"))
        root = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(
            command,
            env=environment({MARK: self._mark, "TEST_FOLDER": str(folder), "XDG_CONFIG_HOME": str(folder)}),
            cwd=root,
            stdin=subprocess.DEVNULL,
        )
        self._heard = b""

    def line(self) -> str:
        deadline = time.monotonic() + 2 * LIMIT_S
        while b"\n" not in self._heard:
            assert select.select([self._said], [], [], max(0.0, deadline - time.monotonic()))[0], self._heard
            self._heard += os.read(self._said, 4096)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def go_on(self, ranks: int) -> None:
        os.write(self._go, b"x" * ranks)

    def processes(self, *, of_mpi: bool = False) -> list[int]:
        """All of the job that are ours, by what each has inherited; or all that are not."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                name = (entry / "comm").read_text().strip()
                if self._mark.encode() in (entry / "environ").read_bytes() and (name in OF_MPI) == of_mpi:
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue  # no process, or one that has ended
        return found

    def ports(self) -> set[str]:
        """At which ours listen, but for those of mpiexec, which it leaves open in what it starts."""
        return ports_of(self.processes()) - ports_of(self.processes(of_mpi=True))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        os.close(self._go)
        os.close(self._said)


@contextmanager
def started(folder: Path, command: tuple[str, ...]) -> Iterator[Started]:
    job = Started(folder, command)
    try:
        yield job
    finally:
        job.close()


def ports_of(processes: list[int]) -> set[str]:
    """Address and port of every TCP socket at which one of them listens."""
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                listening[f"socket:[{words[9]}]"] = f"{words[1]} ({table})"
    found = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue  # closed meanwhile
            if target in listening:
                found.add(f"{listening[target]}, {target}")
    return found


def unix_sockets() -> set[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {
        words[7] for words in map(str.split, lines) if len(words) == 8 and words[7].startswith("@farandole-")
    }


@pytest.mark.parametrize("way", WAYS)
def test_no_process_of_a_job_on_one_machine_listens_on_tcp(way: str, tmp_path: Path) -> None:
    if "mpirun" in way and not Path(MPIRUN).exists():
        pytest.skip("Open MPI is not installed")
    if way == "mpiexec" and not Path(MPIEXEC).exists():
        pytest.skip("MPICH is not installed")
    before = unix_sockets()
    with started(tmp_path, WAYS[way]) as job:
        assert job.line() == "waits"
        deadline = time.monotonic() + LIMIT_S
        while not unix_sockets() - before:  # the store: rank 0 may have to serve it first
            assert time.monotonic() < deadline
            time.sleep(0.02)  # nothing tells when a socket is made
        assert job.ports() == set()
        job.go_on(1)
        assert [job.line(), job.line()] == ["formed 2 [[0, 1]]"] * 2
        assert len(job.processes()) >= 2
        assert job.ports() == set()
        job.go_on(2)
        assert job.process.wait(LIMIT_S) == 0
