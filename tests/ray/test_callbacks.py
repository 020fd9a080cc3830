"""Callbacks that fail or are slow, with stand-ins for queues and ranks."""

from __future__ import annotations

import queue
import threading
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray

from horovod.ray import messages
from horovod.ray.messages import listening_beside

LIMIT_S = 60.0


class Queue:
    """That of Ray, in this process."""

    def __init__(self, **_: Any) -> None:
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.put = self._said.put
        self.qsize = self._said.qsize
        self.ended = False

    def get_nowait_batch(self, count: int) -> list[Any]:
        return [self._said.get_nowait() for _ in range(count)]

    def shutdown(self, force: bool) -> None:
        self.ended = force


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "Queue", Queue)
    monkeypatch.setattr(messages, "on_node", lambda _: None)
    monkeypatch.setattr(ray, "get_runtime_context", Mock)


@pytest.mark.parametrize("error", [SystemExit("the loss is not a number"), KeyboardInterrupt(), KeyError(1)])
def test_whatever_a_callback_raises_is_raised_at_the_end_of_an_elastic_job(
    here: None, error: BaseException
) -> None:
    heard: list[Any] = []
    queues: list[Queue] = []
    came = threading.Event()

    def fail(said: Any) -> None:
        heard.append(said)
        came.set()
        raise error

    def job() -> None:
        with listening_beside([fail]) as there:
            queues.append(there)
            there.put("one")
            assert came.wait(LIMIT_S)
            there.put("two")
            heard.append("the job")

    with pytest.raises(type(error)) as raised:
        job()
    assert raised.value is error
    assert heard == ["one", "the job"]
    assert queues[0].ended
