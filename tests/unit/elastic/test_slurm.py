"""The hosts of a job of Slurm, from programs that stand for scontrol and sinfo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from horovod.launch.elastic.discovery import DiscoveryFailed
from horovod.launch.elastic.slurm import SlurmHosts

_JOB = (
    "JobId=7 JobName=x UserId=u(0) JobState={state} Reason=None ReqNodeList=(null) ExcNodeList=(null) "
    "NodeList={nodes} BatchHost=n1 NumNodes=2 Features=(null)"
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the programs: what they print, by name."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(**printed: str) -> None:
        for name, text in printed.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
            path.chmod(0o755)

    return make


def _job(nodes: str = "n[1-2]", state: str = "RUNNING") -> str:
    return _JOB.format(nodes=nodes, state=state)


def test_the_nodes_of_the_job(slurm: Callable[..., None]) -> None:
    discovery = SlurmHosts("7", {"n1": 4, "n2": 2})
    slurm(scontrol=_job(), sinfo="n1 allocated\nn2 mixed")
    assert discovery.find_available_hosts_and_slots() == {"n1": 4, "n2": 2}


def test_a_node_that_came_later_has_as_many_slots_as_most(slurm: Callable[..., None]) -> None:
    slurm(scontrol=_job("n[1-3],m7"), sinfo="n1 allocated")
    assert SlurmHosts("7", {"n1": 4, "n2": 4, "x": 1}).find_available_hosts_and_slots() == {
        "n1": 4, "n2": 4, "n3": 4, "m7": 4
    }  # fmt: skip


@pytest.mark.parametrize(
    "state", ["down*", "draining", "drained", "drng", "fail", "failing", "powering_down", "maint"]
)
def test_a_node_that_goes_is_left(slurm: Callable[..., None], state: str) -> None:
    slurm(scontrol=_job(), sinfo=f"n1 allocated\nn2 {state}")
    assert SlurmHosts("7", {"n1": 1, "n2": 1}).find_available_hosts_and_slots() == {"n1": 1}


def test_a_job_without_nodes(slurm: Callable[..., None]) -> None:
    slurm(scontrol=_job("(null)"), sinfo="")
    assert SlurmHosts("7", {}).find_available_hosts_and_slots() == {}


def test_a_job_that_is_over(slurm: Callable[..., None]) -> None:
    slurm(scontrol=_job(state="COMPLETING"), sinfo="")
    with pytest.raises(DiscoveryFailed, match="job 7 is not running: its state is COMPLETING"):
        SlurmHosts("7", {}).find_available_hosts_and_slots()


def test_slurm_that_does_not_answer(slurm: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DiscoveryFailed, match="scontrol cannot be asked"):
        SlurmHosts("7", {}).find_available_hosts_and_slots()


def test_slurm_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Invalid job id specified' >&2; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(DiscoveryFailed, match="ended with status 1: Invalid job id specified"):
        SlurmHosts("7", {}).find_available_hosts_and_slots()
