"""A spare takes over, so the ranks stay as many: the weights are those without failure, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.elastic.job import ElasticJob
from tests.elastic.training import FULL, LONG, Train, check_result, part_of


def start(train: Train, hosts: Mapping[str, int], ranks: int, **more: Any) -> ElasticJob:
    """With ``least`` ranks that are as many: the spare is waited for if it is not ready yet."""
    options = ("--max-np", str(ranks), "--spares", "1", "--failure-domain", "slot")
    return train(hosts, *options, processes=ranks, least=ranks, **more)


def bits(job: ElasticJob, name: str) -> Any:
    (one,) = {point[name] for point in job.been("done")}
    return one


def test_of_numpy(train: Train) -> None:
    """Each rank is lost once, at another point (in the gate: rank 0)."""
    with start(train, {"localhost": 4}, 3) as job:
        check_result(job)
        expected = bits(job, "floats")
    faults = [(0, "submitted"), (1, "saved"), (2, "commit")]
    for rank, point in faults if FULL else faults[:1]:
        with start(train, {"localhost": 4}, 3) as job:
            fault = job.inject("kill", point, rank=rank, step=5)
            check_result(job)
            assert fault.times == 0
            assert [each["size"] for each in job.worlds] == [3, 3]
            assert bits(job, "floats") == expected


@LONG
def test_of_numpy_with_the_spare_on_another_host(train: Train) -> None:
    with start(train, {"localhost": 3}, 3) as job:
        check_result(job)
        expected = bits(job, "floats")
    with start(train, {"localhost": 3, "127.0.0.1": 1}, 3) as job:
        job.inject("kill", "submitted", rank=1, step=5)
        check_result(job)
        assert [each["host"] for each in job.worlds[-1]["members"]] == ["localhost"] * 2 + ["127.0.0.1"]
        assert bits(job, "floats") == expected


POINTS = [(0, "backward"), (1, "backward"), (0, "saved"), (1, "commit")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", part_of((2, 3), ()))
def test_of_torch(train: Train, ranks: int) -> None:
    """The model, the momentum of the optimizer, and the order of the sampler."""
    with start(train, {"localhost": ranks}, ranks, epochs=3, program="torch") as job:
        assert job.finish() == 0, job.story()
        expected = bits(job, "weights")
    for rank, point in POINTS:
        with start(train, {"localhost": ranks + 1}, ranks, epochs=3, program="torch") as job:
            job.inject("kill", point, rank=rank, when=lambda at: len(job.been("step", rank=0)) > 3)
            assert job.finish() == 0, job.story()
            assert [each["size"] for each in job.worlds] == [ranks, ranks]
            assert bits(job, "weights") == expected
            assert {point["again"] for point in job.been("epoch")} == {0}
