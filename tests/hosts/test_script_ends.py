"""On several hosts, too, the first rank that failed is named; others learn of it before they are ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.hosts.jobs import LIMIT_S, PYTHON, horovodrun, left_behind, slots
from tests.hosts.simulated import SimulatedHosts
from tests.hosts.slurm import slurm_on, why_no_slurm
from tests.hosts.test_mpirun import environment

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

SCRIPT = str(Path(__file__).parents[1] / "launch" / "script_ends.py")


@pytest.fixture(autouse=True)
def nothing_is_left(two_hosts: SimulatedHosts) -> Iterator[None]:
    yield
    assert left_behind(two_hosts) == []


def check(hosts: SimulatedHosts, how: str, words: tuple[str, ...], extra: Mapping[str, str]) -> None:
    placed = ("-np", "2", *words, "-H", slots(hosts, 1, 1), "--failure-patience", "8")
    done = horovodrun(hosts, *placed, PYTHON, SCRIPT, how, extra=extra)
    said, heard = done.stderr.decode(), done.stdout.decode()
    other = hosts.names[1]
    summary = [line for line in said.splitlines() if line.startswith(f"horovodrun: rank 1 on {other} ")]
    assert summary, said
    # Who is killed may take the last bytes of the operation before with it, or be missed before it is needed.
    killed = r"(?:allreduce\.(?:first|loss) \(1,\)|None \(\))"
    what = killed if how == "signal" else r"allreduce\.loss \(1,\)"
    told = rf"\[0\]<stdout>:PeerLostError 1 {other} {what} rank 1 "
    assert re.search(told, heard), heard + said
    if how == "raise":
        assert f"on host {other} has ended: its script raised ValueError: boom" in heard
        assert ": its script raised ValueError: boom" in summary[-1]
        assert said.count("ValueError: boom") > 1  # a traceback that was shown is not told again
        assert done.returncode == 1
    else:
        assert "was killed by SIGKILL (status 137)" in summary[-1]
        assert done.returncode == 137
    assert "the other rank was ended because of it" in summary[-1]


@pytest.mark.parametrize("how", ["raise", "signal"])
def test_by_ssh(how: str, two_hosts: SimulatedHosts) -> None:
    check(two_hosts, how, (), {})


@pytest.mark.parametrize("how", ["raise", "signal"])
def test_by_mpirun(how: str, two_hosts: SimulatedHosts) -> None:
    check(two_hosts, how, ("--launcher", "mpirun"), environment("Open MPI 5"))


def test_by_srun(two_hosts: SimulatedHosts) -> None:
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_on(two_hosts) as clients:
        check(two_hosts, "raise", ("--launcher", "srun"), clients)
