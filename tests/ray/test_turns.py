"""Threads that use one executor at once, with stand-ins for its actors."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from tests.ray.helpers import settings

from horovod.ray import RayExecutor, static
from horovod.ray.failures import Member
from horovod.ray.static import StaticAdapter, StaticParams

RANKS, CALLS = 4, 200


class Standin:
    """An actor that notes the calls in their order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.execute = self
        self.watch: Callable[[], object] = object

    def remote(self, call: Any) -> object:
        self.watch()
        self.calls.append(call)
        return object()


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Standin]]:
    monkeypatch.setattr(static, "shipped", lambda what, *_, parts: list(parts))
    monkeypatch.setattr(static, "connection", lambda: "")
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield [Standin() for _ in range(RANKS)]
    sys.setswitchinterval(interval_s)


def adapter_of(actors: Sequence[Standin]) -> StaticAdapter:
    made = StaticAdapter(StaticParams(num_workers=RANKS), settings())
    made._members = [Member(rank, "node", "host", actor) for rank, actor in enumerate(actors)]
    started: Any = object()
    made._strategy = started
    return made


def at_once(*calls: Callable[[], Any]) -> None:
    def often(call: Callable[[], Any]) -> None:
        for _ in range(CALLS):
            call()

    with ThreadPoolExecutor(len(calls)) as threads:
        for done in [threads.submit(often, call) for call in calls]:
            done.result(60)


def test_all_actors_get_the_calls_of_several_threads_in_one_order(
    actors: list[Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "await_members", lambda references, *_: list(references))
    adapter = adapter_of(actors)
    at_once(
        lambda: adapter.run_remote(len, [[]]),
        lambda: adapter.run(len, [[]]),
        lambda: adapter.execute(lambda _: None),
    )
    assert len(actors[0].calls) == 3 * CALLS
    for actor in actors[1:]:
        assert list(map(id, actor.calls)) == list(map(id, actors[0].calls))


@pytest.mark.parametrize("what", ["run", "execute", "execute_single", "run_remote"])
def test_a_call_begins_when_the_one_of_another_thread_is_over(
    what: str, actors: list[Standin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rank on which the first has failed would be in the second while others are in the first."""
    adapter = adapter_of(actors)
    ordered: list[bool] = []
    free: list[bool] = []
    for actor in actors:
        actor.watch = lambda: ordered.append(adapter._locks.order.locked())

    def await_members(references: Sequence[Any], *_: Any) -> list[Any]:
        with ThreadPoolExecutor(1) as another:
            free.append(another.submit(adapter._locks.turn.acquire, False).result(60))
        return list(references)

    monkeypatch.setattr(static, "await_members", await_members)
    if what.startswith("run"):
        getattr(adapter, what)(len, [[]])
    else:
        getattr(adapter, what)(lambda _: None)
    assert ordered == [True] * (1 if what == "execute_single" else RANKS)
    assert free == ([] if what == "run_remote" else [False])


def test_a_callback_may_call_the_executor(actors: list[Standin], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called on the thread whose turn it is."""
    inner: list[Any] = []

    def await_members(references: Sequence[Any], *_: Any) -> list[Any]:
        if not inner:
            inner.append(None)
            inner.append(adapter.execute_single(lambda _: None))
        return list(references)

    monkeypatch.setattr(static, "await_members", await_members)
    adapter = adapter_of(actors)
    with ThreadPoolExecutor(1) as threads:
        assert len(threads.submit(adapter.run, len, [[]]).result(60)) == RANKS
    assert len(inner) == 2


def test_an_executor_that_is_not_started_can_be_sent_to_another_process() -> None:
    made = pickle.loads(pickle.dumps(RayExecutor(settings(), num_workers=3)))
    assert made.adapter.params.num_workers == 3
