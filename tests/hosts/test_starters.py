"""Every other way of starting ranks on several hosts, with the real launchers: 4 ranks on 2 hosts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.simulated import SimulatedHosts

import horovod

ROOT = Path(__file__).parents[2]
JOB = (sys.executable, str(Path(__file__).with_name("starter_job.py")))
DEBIAN_OPEN_MPI = "/usr/bin/mpirun"
OPEN_MPI_5 = str(Path(sys.executable).with_name("mpirun"))
MPICH = str(ROOT / ".venv-mpich" / "bin" / "mpiexec")
LIMIT_S = 100.0
pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home directory that the hosts share, so that the key of a user is not made where people live."""
    folder = Path(tempfile.mkdtemp(prefix="farandole-home-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def environment(home: Path) -> Mapping[str, str]:
    source = str(Path(horovod.__file__).parents[1])
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])),
        "XDG_CONFIG_HOME": str(home),
        "HOROVOD_START_TIMEOUT": "60",
    }


def need(path: str, package: str) -> str:
    if not Path(path).exists():
        pytest.skip(f"{path} is missing: {package}")
    return path


def check(hosts: SimulatedHosts, said: bytes, locals_: Sequence[int] = (2, 2)) -> None:
    """The world of ``said`` has ``locals_[h]`` ranks on host h, in this order, and they reduced rightly."""
    lines = [json.loads(line) for line in said.decode().splitlines() if line.startswith("{")]
    ranks: list[dict[str, Any]] = sorted(lines, key=lambda line: int(line["rank"]))
    assert [each["rank"] for each in ranks] == list(range(sum(locals_))), said
    where = [host for host, count in enumerate(locals_) for _ in range(count)]
    assert [each["host"] for each in ranks] == [hosts.names[host] for host in where]
    locals_of = [(index, count) for count in locals_ for index in range(count)]
    assert [tuple(each["local"]) for each in ranks] == locals_of
    crosses = [
        (sum(index < other for other in locals_[:host]), sum(index < other for other in locals_))
        for host, (index, _) in zip(where, locals_of, strict=True)
    ]
    assert [tuple(each["cross"]) for each in ranks] == crosses
    assert all(each["right"] for each in ranks)
    assert all(len(each["groups"]) == len(locals_) for each in ranks)


def succeed(hosts: SimulatedHosts, words: Sequence[str], extra: Mapping[str, str]) -> bytes:
    done = hosts.run(0, *words, extra=extra, timeout_s=LIMIT_S)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize(
    ("mpirun", "package", "hidden"),
    [
        (DEBIAN_OPEN_MPI, "openmpi-bin", ()),
        (OPEN_MPI_5, "make venv", ()),
        (OPEN_MPI_5, "make venv", ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ],
    ids=["Open MPI 4", "Open MPI 5", "PMIx alone"],
)
def test_mpirun_of_open_mpi(
    two_hosts: SimulatedHosts,
    environment: Mapping[str, str],
    mpirun: str,
    package: str,
    hidden: Sequence[str],
) -> None:
    where = ",".join(f"{name}:2" for name in two_hosts.names)
    words = [need(mpirun, package), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    words += ["--map-by", "slot", "--host", where, "-np", "4"]
    words += [word for name in environment for word in ("-x", name)]
    words += ["env", *(word for name in hidden for word in ("-u", f"OMPI_COMM_WORLD_{name}"))]
    check(two_hosts, succeed(two_hosts, [*words, *JOB], environment))


@pytest.mark.parametrize("speaks_last", ["", "0", "1", "3"])
def test_mpiexec_of_mpich(
    two_hosts: SimulatedHosts, environment: Mapping[str, str], speaks_last: str
) -> None:
    """Also a rank that has something to do when all others have ended."""
    where = ",".join(f"{name}:2" for name in two_hosts.names)
    words = [need(MPICH, "make venv-mpich"), "-hosts", where, "-n", "4"]
    said = succeed(two_hosts, [*words, *JOB], {**environment, "SPEAKS_LAST": speaks_last})
    check(two_hosts, said)


def test_under_mpiexec_of_mpich_all_others_hear_why_a_rank_has_failed(
    two_hosts: SimulatedHosts, environment: Mapping[str, str]
) -> None:
    where = ",".join(f"{name}:2" for name in two_hosts.names)
    words = [need(MPICH, "make venv-mpich"), "-hosts", where, "-n", "4", *JOB]
    done = two_hosts.run(0, *words, extra={**environment, "FAILS": "2"}, timeout_s=LIMIT_S)
    assert done.returncode == 1
    heard = sorted(
        line for line in done.stdout.decode().splitlines() if "its script raised ValueError: boom" in line
    )
    assert [line[:2] for line in heard] == ["0 ", "1 ", "3 "], done.stdout


def test_torchrun_on_two_hosts(two_hosts: SimulatedHosts, environment: Mapping[str, str]) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    words += ["--master-addr", two_hosts.names[0], "--master-port", "29511"]
    agents = [
        two_hosts.popen(host, *words, "--node-rank", str(host), JOB[1], extra=environment) for host in (0, 1)
    ]
    ends = [agent.communicate(timeout=LIMIT_S) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    check(two_hosts, b"".join(stdout for stdout, _ in ends))


@pytest.fixture(scope="module")
def slurm(slurm: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
    return {**environment, **slurm}


@pytest.mark.parametrize("mpi", ["none", "pmi2", "pmix"])
def test_srun(two_hosts: SimulatedHosts, slurm: Mapping[str, str], mpi: str) -> None:
    if mpi == "pmix" and not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        pytest.skip("Slurm's plugin for PMIx needs libpmix-dev")
    # Left to itself Slurm puts three tasks on one host and one on the other.
    said = succeed(two_hosts, ["srun", "-N", "2", "-n", "4", f"--mpi={mpi}", *JOB], slurm)
    check(two_hosts, said, (3, 1))


def test_a_batch_script_is_not_a_task(
    two_hosts: SimulatedHosts, slurm: Mapping[str, str], home: Path
) -> None:
    script, out = home / "job.sh", home / "out.txt"
    script.write_text(f"#!/bin/sh\nexec {' '.join(JOB)}\n")
    succeed(two_hosts, ["sbatch", "--wait", "-N", "2", "-n", "4", "-o", str(out), str(script)], slurm)
    (line,) = out.read_text().splitlines()
    assert (json.loads(line)["rank"], json.loads(line)["size"]) == (0, 1)
