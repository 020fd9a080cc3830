"""The driver of an elastic job: the words about a worker whose end has ended it, and signals."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from horovod.launch.contracts.events import Exited, HostFacts, HostReached
from horovod.launch.contracts.job import Job
from horovod.launch.driver.actions import End, Finish, Start, WorkerEnd
from horovod.launch.elastic.growing import GrowingDriver
from horovod.launch.elastic.hosts import Hosts
from horovod.launch.elastic.job import _ElasticJob
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.launch.elastic.rules import Rules

KILLED = WorkerEnd(3, 0, "a", 0, -signal.SIGKILL)


@pytest.mark.parametrize("told", [True, False])
def test_worker_that_horovodrun_has_killed_was_not_out_of_memory(told: bool) -> None:
    policy = ElasticPolicy(Rules(1, 1), Hosts(None), 0.0)
    driver = GrowingDriver(policy, "train", "machine", 0.0)
    driver.hear(Exited(3, -signal.SIGKILL, told=told), 0.0)
    job: Any = object.__new__(_ElasticJob)
    job._driver = driver
    job._output = SimpleNamespace(tail=lambda number: ())
    job._job = Job(("train",), 1)
    said = str(job._worker_failed(KILLED, ""))
    assert ("out of memory" in said) is not told
    assert ("It was ended by horovodrun." in said) is told


def test_signal_that_ends_the_job_is_the_only_one_that_workers_get() -> None:
    policy = ElasticPolicy(Rules(2, 2), Hosts(None), 0.0)
    driver = GrowingDriver(policy, "train", "machine", 0.0)
    policy.discovered({"a": 2}, 0.0)
    driver.hear(HostReached("a", HostFacts("machine", 2, "")), 0.0)
    driver.settle(0.0)
    started = [action for action in driver.actions if isinstance(action, Start)]
    assert len(started) == 2
    driver.note(driver.actions)
    driver.actions = []
    driver.interrupt(signal.SIGINT, 1.0)
    driver.settle(1.0)
    assert [action for action in driver.actions if isinstance(action, (Finish, End))] == [
        Finish(signal.SIGINT)
    ]
