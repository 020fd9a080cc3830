"""The words about a worker whose end has ended an elastic job."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from horovod.launch.contracts.events import Exited
from horovod.launch.contracts.job import Job
from horovod.launch.driver.actions import WorkerEnd
from horovod.launch.elastic.job import _Course

KILLED = WorkerEnd(3, 0, "a", 0, -signal.SIGKILL)


@pytest.mark.parametrize("told", [True, False])
def test_worker_that_horovodrun_has_killed_was_not_out_of_memory(told: bool) -> None:
    course: Any = object.__new__(_Course)
    course._words, course._lost, course._ended_by_us = {}, {}, set()
    course._output = SimpleNamespace(tail=lambda number: ())
    course._job = Job(("train",), 1)
    course._passing = SimpleNamespace(leave=lambda numbers: None)
    course._driver = SimpleNamespace(exited=lambda *what: None)
    course._conversation = SimpleNamespace(forget=lambda number: None)
    course._take(Exited(3, -signal.SIGKILL, told=told), 0.0)
    said = str(course._worker_failed(KILLED, ""))
    assert ("out of memory" in said) is not told
    assert ("It was ended by horovodrun." in said) is told
