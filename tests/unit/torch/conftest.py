from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from tests.unit.torch.fake_engine import FakeEngine

from horovod import _runtime
from horovod.errors import NotInitializedError

MakeWorld = Callable[[int], FakeEngine]


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> MakeWorld:
    """Call with a size: this process becomes rank 0 of a world whose ranks all hold the same."""

    def make(size: int) -> FakeEngine:
        engine = FakeEngine(size=size)
        topology = SimpleNamespace(
            rank=0, size=size, local_rank=0, local_size=size, cross_rank=0, cross_size=1, homogeneous=True
        )
        runtime = SimpleNamespace(engine=engine, topology=topology)
        monkeypatch.setattr(_runtime, "current", lambda: runtime)
        monkeypatch.setattr(_runtime, "is_initialized", lambda: True)
        return engine

    return make


@pytest.fixture
def no_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """``init()`` has not been called."""

    def current() -> None:
        raise NotInitializedError

    monkeypatch.setattr(_runtime, "current", current)
    monkeypatch.setattr(_runtime, "is_initialized", lambda: False)
