"""Small parts: which path carried, how far it is, and when the maintainers' check fails."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from benchmarks.check import Ratio, fallen

from horovod.bench.mpi_job import MpiJob, mpirun_command, mpirun_environment
from horovod.bench.output import ProgressLine
from horovod.bench.peers import path_taken
from horovod.errors import LaunchError


def test_path_is_the_one_with_most_new_operations() -> None:
    before = {"shm.small": (10, 40), "shm.large": (5, 1000)}
    after = {"shm.small": (110, 440), "shm.large": (8, 9000), "tcp": (1, 1)}
    assert path_taken(before, after) == "shm.small"
    assert path_taken({}, {}) == ""


def test_progress_changes_one_line_and_clears_it() -> None:
    stream = io.StringIO()
    progress = ProgressLine("line", 4, stream)
    progress.step("first")
    progress.step("second")
    progress.clear()
    assert stream.getvalue() == "\x1b[K0 %: first\r\x1b[K25 %: second\r\x1b[K\r"


@pytest.mark.parametrize("mode", ["none", "auto", "lines"])
def test_progress_does_not_flood_what_is_no_terminal(mode: str) -> None:
    stream = io.StringIO()
    progress = ProgressLine(mode, 1000, stream)
    for _ in range(1000):
        progress.step("again")
    progress.clear()
    assert stream.getvalue().count("\n") <= 1
    assert "\r" not in stream.getvalue()


def test_ratio_falls_only_by_more_than_both_spreads() -> None:
    recorded = Ratio(10.0, 9.0, 10.5)
    assert not fallen(Ratio(9.5, 9.4, 9.6), recorded)
    assert fallen(Ratio(8.5, 8.4, 8.6), recorded)
    assert not fallen(Ratio(8.5, 6.5, 8.6), recorded)  # this run was unsteady itself
    assert not fallen(Ratio(12.0, 11.0, 13.0), recorded)
    assert fallen(Ratio(0.5, 0.1, 9.0), recorded)  # no spread excuses everything


def test_mpirun_that_fails_is_heard(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho there are no slots >&2\nexit 3\n")
    mpirun.chmod(0o755)
    with pytest.raises(LaunchError, match=r"0 of 2 processes of MPI came(?s:.*)there are no slots"):
        MpiJob(str(mpirun), 2)


def test_mpirun_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nowhere could not be started: "):
        MpiJob(str(tmp_path / "nowhere"), 2)


def test_ranks_without_a_cpu_of_their_own_are_not_bound() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert mpirun_command("mpirun", 1) == ["mpirun", "-n", "1"]
    assert "--bind-to" in mpirun_command("mpirun", cpus + 1)


def test_mpi_job_inherits_nothing_of_the_job_around_it() -> None:
    inherited = {"PATH": "bin", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1", "HOROVOD_RANK": "1"}
    assert {name for name in mpirun_environment(inherited) if not name.startswith("OMPI_ALLOW")} == {"PATH"}
