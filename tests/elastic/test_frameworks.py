"""Jobs of every framework: a host comes and the first one goes; rank 0 is lost; the rest goes on."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
from tests.elastic.job import ElasticJob
from tests.elastic.training import Train, part_of

pytestmark = pytest.mark.timeout(300)

BACKENDS = ["tensorflow", "torch", *(["jax"] if importlib.util.find_spec("jax") else [])]
WAYS = ["torch", "tensorflow", *(f"keras-{backend}" for backend in BACKENDS)]
EPOCHS = 3
ALL = list(itertools.product(WAYS, (1, 2)))


def begin(train: Train, way: str, hosts: dict[str, int], *options: str) -> ElasticJob:
    program, _, backend = way.partition("-")
    extra = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": backend or "tensorflow"}
    return train(hosts, *options, epochs=EPOCHS, program=program, extra=extra, limit_s=250.0)


def ended_well(job: ElasticJob) -> None:
    """All have the same weights, after all epochs."""
    status = job.finish(150.0)
    assert not job.been("wrong"), job.story()
    assert status == 0, job.story()
    done = job.been("done")
    assert len(done) == len(job.world), job.story()
    assert {point["epoch"] for point in done} == {EPOCHS}
    assert len({point["weights"] for point in done}) == 1


@pytest.mark.parametrize(("way", "slots"), part_of(ALL, {("torch", 1)}))
def test_a_host_is_added_and_the_first_one_removed(train: Train, way: str, slots: int) -> None:
    """Rank 0 waits for what is to come: in the second epoch for the new host, in the third for its end."""
    with begin(train, way, {"localhost": slots}) as job:
        job.inject("hold", "step", rank=0, epoch=1)
        job.wait(lambda: job.held, "the second epoch", 120.0)
        (held,) = job.held
        job.offer({"localhost": slots, "127.0.0.1": slots})
        job.until_event("notified", within_s=120.0)
        job.inject("hold", "step", rank=0, epoch=2, round=2)
        job.release(held)
        job.wait(lambda: job.held, "the third epoch", 120.0)
        job.offer({"127.0.0.1": slots})
        job.until_event("notified", 2)
        job.release(held)
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [slots, 2 * slots, slots]
        assert [each["members"][0]["host"] for each in job.worlds] == ["localhost", "localhost", "127.0.0.1"]


@pytest.mark.parametrize(("way", "slots"), part_of(ALL, {("keras-tensorflow", 1), ("keras-jax", 1)}))
def test_rank_0_is_lost(train: Train, way: str, slots: int) -> None:
    """Its host is lost with it."""
    with begin(train, way, {"localhost": slots, "127.0.0.1": slots}) as job:
        job.inject("kill", "step", rank=0, epoch=1)
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [2 * slots, slots]
        assert job.worlds[-1]["members"][0]["worker"] == slots


def test_a_newcomer_goes_on_alone_from_what_it_got(train: Train) -> None:
    """It has committed nothing when the only other rank is lost; the copy that it has was that one's."""
    with begin(train, "torch", {"localhost": 1}) as job:
        job.inject("hold", "step", rank=0, epoch=1)
        job.wait(lambda: job.held, "the second epoch", 120.0)
        job.offer({"localhost": 1, "127.0.0.1": 1})
        job.until_event("notified", within_s=120.0)
        job.inject("hold", "begun", times=2, round=2)
        job.release(0)
        job.wait(lambda: len(job.held) == 2, "the second world", 120.0)
        job.kill(0)
        job.release(1, "spoil")
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [1, 2, 1]
        assert len(job.been("begun", round=3)) == 1
        begun = job.been("begun", round=2) + job.been("begun", round=3)
        assert len({(at["weights"], at["epoch"], at["batch"]) for at in begun}) == 1
