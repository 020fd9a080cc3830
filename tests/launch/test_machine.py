"""How many processes there are where nobody has said it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from tests.launch.launching import horovodrun

from horovod.bootstrap.place.cores import usable_cores
from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job
from horovod.launch.launchers import local
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import to_job
from horovod.launch.output.console import Console
from horovod.launch.placement import allocations
from horovod.launch.placement.hosts import Allocated, HostSlots
from horovod.launch.run import run_job


@pytest.fixture
def four_gpus(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "usable"),
    [
        (None, 4),
        ("0,1,2,3", 4),
        ("2", 1),
        ("3,1", 2),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 1),  # cannot be told from the name of a device
        ("0,-1,1", 1),
        ("0,4,1", 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, MIG-1a2b", 2),
    ],
)
def test_gpus_are_those_that_are_visible(visible: str | None, usable: int, four_gpus: Path) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert allocations.usable_gpus(environ, four_gpus) == usable


def test_without_devices_there_is_nothing_to_be_visible(tmp_path: Path) -> None:
    assert allocations.usable_gpus({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) == 0
    assert allocations.usable_gpus({}, tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("gpus", "cores", "processes", "why"),
    [
        (4, (8, False), 4, "one for each GPU"),
        (0, (8, False), 8, "one for each core that may be used"),
        (0, (2, True), 2, "one for each core that its control group allows"),
    ],
)
def test_gpus_count_before_cores(
    gpus: int, cores: tuple[int, bool], processes: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations, "usable_gpus", lambda _: gpus)
    monkeypatch.setattr(allocations, "usable_cores", lambda: cores)
    assert allocations.room_here({}) == (processes, why)


def job(*words: str, allocated: Allocated | None = None) -> tuple[Job, list[str]]:
    notices: list[str] = []
    return to_job(parse_command_line(words), allocated, notices.append), notices


@pytest.mark.parametrize("words", [["true"], ["-np", "auto", "true"], ["true", "--epochs", "2"]])
def test_without_a_number_the_machine_is_filled_and_that_is_said(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "horovod.launch.options.job.room_here", lambda _: allocations.Room(3, "one for each GPU")
    )
    found, notices = job(*words)
    assert (found.processes, found.hosts) == (3, ())
    assert notices == ["3 processes on this machine: one for each GPU (-np N decides)"]


def test_hosts_decide_before_the_machine() -> None:
    allocated = Allocated("a batch system", (HostSlots("a", 2), HostSlots("b", 2)), 3)
    for words in (["true"], ["-np", "auto", "true"]):
        found, notices = job(*words, allocated=allocated)
        assert (found.processes, notices) == (3, [])
        found, notices = job("-H", "a:2,b:3", *words)
        assert (found.processes, notices) == (5, [])


def test_where_ranks_go_elsewhere_a_number_is_needed() -> None:
    with pytest.raises(ConfigError, match="-np is missing: how many processes"):
        job("--launcher", "srun", "true")


def test_a_job_without_a_number_runs_on_every_core() -> None:
    done = horovodrun("sh", "-c", "echo $HOROVOD_SIZE", extra={"CUDA_VISIBLE_DEVICES": ""})
    cores, _ = usable_cores()
    assert done.stdout.decode().splitlines()[0].endswith(f":{cores}")
    assert done.stdout.count(b"\n") == cores
    said = done.stderr.decode()
    assert said.startswith(f"horovodrun: {cores} process")
    assert said.count("\n") == 1


def test_compute_threads_share_what_the_control_group_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "usable_cores", lambda: (6, True))
    assert threads_of_a_job() == "3"
    monkeypatch.setattr(local, "usable_cores", lambda: (1, True))
    assert threads_of_a_job() == "1"


def threads_of_a_job() -> str:
    """``OMP_NUM_THREADS`` of a rank of two on this machine."""
    stdout = io.StringIO()
    environ = {"PATH": os.environ["PATH"]}
    run_job(Job(("sh", "-c", "echo $OMP_NUM_THREADS"), 2), environ, Console(stdout=stdout))
    return stdout.getvalue().splitlines()[0].partition(">:")[2]
