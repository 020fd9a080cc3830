"""Jobs that are started again."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from horovod.errors import ConfigError, WorkerFailed
from horovod.launch.cli import with_restarts
from horovod.launch.contracts.errors import CommandNotStarted, JobInterrupted, LauncherFailed
from horovod.launch.output.console import Console


class _Job:
    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.counts: list[str | None] = []

    def __call__(self, environ: Mapping[str, str]) -> None:
        self.counts.append(environ.get("HOROVOD_RESTART_COUNT"))
        error = self.errors.pop(0)
        if error is not None:
            raise error


def _run(most: int, job: _Job) -> str:
    said = io.StringIO()
    with_restarts(most, job, {"A": "1"}, Console(stdout=io.StringIO(), stderr=said))
    return said.getvalue()


def test_a_failed_rank_starts_the_job_again() -> None:
    job = _Job(WorkerFailed("rank 1 failed"), LauncherFailed("mpirun failed"), None)
    said = _run(3, job)
    assert job.counts == ["0", "1", "2"]
    assert "rank 1 failed" in said
    assert "starting the job again (2 of 3: --max-restarts)" in said


def test_no_more_than_so_often() -> None:
    job = _Job(WorkerFailed("one"), WorkerFailed("two"))
    with pytest.raises(WorkerFailed, match="two"):
        _run(1, job)


def test_without_restarts_nothing_is_different() -> None:
    job = _Job(WorkerFailed("one"))
    with pytest.raises(WorkerFailed, match="one"):
        _run(0, job)
    assert job.counts == [None]


@pytest.mark.parametrize("error", [ConfigError("x"), CommandNotStarted("x"), JobInterrupted("x", signum=2)])
def test_what_another_start_does_not_help(error: Exception) -> None:
    job = _Job(error)
    with pytest.raises(type(error)):
        _run(5, job)
    assert len(job.counts) == 1
