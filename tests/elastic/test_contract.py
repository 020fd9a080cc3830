"""Elastic jobs as the interface promises them: sizes, ranks, ends, and what is said at the end."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.elastic.job import ElasticJob
from tests.elastic.training import LONG, Train, check_result, part_of

import horovod
from horovod.errors import WorkerFailed
from horovod.wordings import too_many_resets

HERE, THERE = "localhost", "127.0.0.1"
TWO = {HERE: 2, THERE: 2}


def sizes(job: ElasticJob) -> list[int]:
    return [each["size"] for each in job.worlds]


@pytest.mark.parametrize(
    ("how", "fixed"),
    part_of(itertools.product(("raise", "kill"), (False, True)), {("raise", False), ("kill", True)}),
)
def test_rank_0_fails_and_costs_its_host(train: Train, how: str, fixed: bool) -> None:
    """Both slots of its host are lost; rank 2 is the next rank 0."""
    options = ("-H", "localhost:2,127.0.0.1:2") if fixed else ()
    with train(TWO, *options, fixed=fixed) as job:
        job.inject(how, "step", rank=0, epoch=1)
        check_result(job)
        assert sizes(job) == [4, 2]
        assert [each["worker"] for each in job.worlds[1]["members"]] == [2, 3]
        assert {point["epoch"] for point in job.been("epoch")} == {1, 2, 3, 4}


@pytest.mark.parametrize("fixed", part_of((False, True), {True}))
def test_all_ranks_fail_together(train: Train, fixed: bool) -> None:
    options = ("-H", "localhost:2,127.0.0.1:1") if fixed else ()
    with train({HERE: 2, THERE: 1}, *options, fixed=fixed) as job:
        job.inject("raise", "step", epoch=1, times=3)
        assert job.finish() == 1
        assert "one or more processes exited with non-zero status" in job.text
        assert "Exit code: 1" in job.text
        assert sizes(job) == [3]


def test_one_rank_of_each_host_fails(train: Train) -> None:
    with train(TWO) as job:
        job.inject("raise", "step", rank=1, epoch=1)
        job.inject("raise", "step", rank=3, epoch=1)
        assert job.finish() == 1
        assert "one or more processes exited with non-zero status" in job.text
        assert sizes(job) == [4]


@LONG
def test_one_rank_of_each_host_is_killed(train: Train) -> None:
    with train(TWO) as job:
        job.inject("kill", "step", rank=0, epoch=1)
        job.inject("kill", "step", rank=2, epoch=1)
        assert job.finish() not in (0, None)
        assert "Exit code: -9" in job.text
        assert sizes(job) == [4]


def test_too_few_slots_after_a_failure(train: Train) -> None:
    with train(TWO, "--elastic-timeout", "1", least=3) as job:
        job.inject("kill", "step", rank=0, epoch=1)
        assert job.finish() == 1
        assert "Timed out waiting for minimum number of slots to become available" in job.text
        assert "3 slots needed, 2 there (127.0.0.1:2), for 1 s" in job.text
        assert sizes(job) == [4]


@pytest.mark.parametrize("limit", part_of((1, 2), {1}))
def test_the_reset_limit(train: Train, limit: int) -> None:
    """A failure and another one are two changes."""
    with train({HERE: 1, THERE: 2}, "--failure-domain", "slot", "--reset-limit", str(limit)) as job:
        job.inject("kill", "step", rank=1, epoch=1)
        job.inject("kill", "step", rank=1, epoch=2)
        if limit == 2:
            check_result(job)
            assert sizes(job) == [3, 2, 1]
        else:
            assert job.finish() == 1
            assert too_many_resets(1) in job.text
            assert sizes(job) == [3, 2]


def test_a_host_that_fails_twice_comes_back_twice(train: Train) -> None:
    """Training goes on with the other one in between."""
    with train(TWO, "--blacklist-cooldown-range", "1", "2", epochs=1 << 40) as job:
        job.policy = lambda at: "last" if at.name == "step" and len(job.worlds) == 5 else "go"
        job.inject("kill", "step", rank=2, epoch=1)
        job.until_event("world", 3)
        job.inject("kill", "step", rank=3, round=3)
        check_result(job, None)
        assert sizes(job) == [4, 2, 4, 2, 4]
        assert [each["host"] for each in job.worlds[4]["members"]] == [HERE] * 2 + [THERE] * 2
        spans = [each["back_s"] for each in job.happened("left_out", host=THERE)]
        assert spans == [2.0, 2.0]  # LO * 2**n and more, but HI at most


@LONG
def test_five_epochs_with_a_cool_down(train: Train) -> None:
    with train(TWO, "--blacklist-cooldown-range", "1", "2", epochs=5) as job:
        job.inject("raise", "step", rank=0, epoch=1)
        check_result(job, 5)
        assert sizes(job)[:2] == [4, 2]
        assert job.worlds[1]["members"][0]["host"] == THERE


# -- horovod.run --------------------------------------------------------------------------------------------


def place() -> tuple[int, int]:
    import horovod.arrays as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


def test_run_with_fixed_hosts() -> None:
    found = horovod.run(place, num_proc=2, min_num_proc=2, max_num_proc=2, hosts="localhost:2,127.0.0.1:2")
    assert found == [(0, 2), (1, 2)]


def test_run_with_a_script(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:2\n")
    script.chmod(0o755)
    found = horovod.run(place, num_proc=2, min_num_proc=2, max_num_proc=2, host_discovery_script=str(script))
    assert found == [(0, 2), (1, 2)]


def lost_once(folder: str) -> tuple[int, int]:
    """Rank 0 is killed in the first world."""
    import signal

    import numpy as np

    import horovod.arrays as hvd
    from horovod.elastic.run import run_fn
    from horovod.elastic.state import ObjectState

    def train(state: Any) -> tuple[int, int]:
        if hvd.rank() == 0 and not (Path(folder) / "lost").exists():
            (Path(folder) / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(3), op=hvd.Sum, name="all")
        return hvd.rank(), hvd.size()

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    hvd.init()
    state = ObjectState(lambda value: hvd.broadcast_object(value, 0, name="state"), hvd.rank, step=0)
    place: tuple[int, int] = run_fn(train, reset)(state)
    return place


def test_run_gives_results_of_the_last_world(tmp_path: Path) -> None:
    hosts = "localhost:1,127.0.0.1:2"
    found = horovod.run(lost_once, (str(tmp_path),), num_proc=3, min_num_proc=2, hosts=hosts)
    assert found == [(0, 2), (1, 2)]


def test_run_says_what_a_function_raised() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(WorkerFailed, match="one or more processes exited with non-zero status") as caught:
        horovod.run(fail, num_proc=2, min_num_proc=1, hosts="localhost:1,127.0.0.1:1")
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("words", [(sys.executable, "-c", "pass"), ("true",)], ids=["python", "true"])
def test_a_command_runs(words: Sequence[str]) -> None:
    """A command that never calls ``init`` is no elastic program, and ends well all the same."""
    from tests.launch.launching import horovodrun

    done = horovodrun("-np", "2", "--min-np", "2", "-H", "localhost:1,127.0.0.1:1", *words)
    assert done.returncode == 0, done.stderr
