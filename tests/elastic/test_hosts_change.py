"""Hosts come and go while workers train."""

from __future__ import annotations

import pytest
from tests.elastic.job import ElasticJob, Point
from tests.elastic.training import Train, part_of

HERE, THERE = "localhost", "127.0.0.1"


def last_when(job: ElasticJob, worlds: int, size: int) -> None:
    """Let the job end with the epoch in which there were so many worlds, and the last has this size."""

    def policy(at: Point) -> str:
        formed = len(job.worlds) >= worlds and job.worlds[-1]["size"] == size
        return "last" if at.name == "step" and formed else "go"

    job.policy = policy


def ended_well(job: ElasticJob) -> None:
    status = job.finish()
    assert not job.been("wrong"), job.story()
    assert status == 0, job.story()


@pytest.mark.parametrize("slots", part_of((1, 2), {2}))
def test_a_host_is_added_and_the_first_one_removed(train: Train, slots: int) -> None:
    with train({HERE: slots}, epochs=2000) as job:
        last_when(job, 3, slots)
        job.until_point("step", step=3)
        job.offer({HERE: slots, THERE: slots})
        second = job.until_event("world", 2)
        assert [each["host"] for each in second["members"]] == [HERE] * slots + [THERE] * slots
        job.until_point("step", round=2, rank=0)
        job.offer({THERE: slots})
        third = job.until_event("world", 3)
        assert [each["worker"] for each in third["members"]] == list(range(slots, 2 * slots))
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [slots, 2 * slots, slots]
        assert [point["skip_sync"] for point in job.been("interrupted", round=2)] == [True] * 2 * slots


def test_a_newcomer_comes_into_a_world_that_shrinks(train: Train) -> None:
    """Rank 0 heard of a removal only, so members would not synchronise; but a newcomer comes in, too."""
    with train({HERE: 2, THERE: 1}, epochs=2000) as job:
        last_when(job, 2, 3)
        job.inject("hold", "prologue", worker=3)
        job.until_point("step", step=3)
        job.offer({HERE: 2, THERE: 2})
        job.wait(lambda: job.held, "the newcomer")
        job.inject("hold", "interrupted", worker=0)
        for worker in (1, 2):  # once one has left, rank 0 is told nothing more
            job.inject("hold", "leaving", worker=worker)
        job.offer({HERE: 1, THERE: 2})
        job.wait(lambda: {0, 1, 2} <= set(job.held), "the members' interrupt")
        assert job.been("interrupted")[0]["skip_sync"]
        job.release(3)
        job.until_event("notified", 2)
        for worker in (0, 1, 2):
            job.release(worker)
        ended_well(job)
        assert job.worlds[1]["joined"] == [3]


def test_rank_0_is_one_that_has_the_state(train: Train) -> None:
    """A newcomer on the first host is in a world that ends before it has got the state of the others."""
    options = ("--failure-domain", "slot", "--blacklist-cooldown-range", "1", "1")
    with train({HERE: 1, THERE: 2}, *options, epochs=2000) as job:
        job.inject("kill", "step", worker=0, step=4)
        job.inject("kill", "sync", worker=2, round=3)
        last_when(job, 4, 2)
        third = job.until_event("world", 3)
        assert third["joined"] == [3]
        fourth = job.until_event("world", 4)
        assert [each["worker"] for each in fourth["members"]] == [1, 3]
        ended_well(job)
        begun = job.been("synced", round=4)
        assert {point["step"] for point in begun} == {
            max(point["step"] for point in job.been("saved", round=2))
        }


def test_nobody_is_left_who_has_the_state(train: Train) -> None:
    """The only one that has it is killed while it gives it to a newcomer: starting anew would lose everything
    without a word.
    """
    with train({HERE: 1}, epochs=2000) as job:
        job.until_point("step", step=3)
        job.inject("kill", "sync", worker=0, round=2)
        job.offer({HERE: 1, THERE: 1})
        assert job.finish() == 1, job.story()
        assert "nobody is left who has the state of the training" in job.text
