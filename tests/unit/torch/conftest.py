from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.torch.fake_engine import FakeEngine

from horovod.bootstrap.place.topology import Topology
from horovod.config import Config
from horovod.errors import NotInitializedError
from horovod.runtime import lifecycle
from horovod.torch.autograd import collectives

MakeWorld = Callable[..., FakeEngine]


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> MakeWorld:
    """Call with a size and settings (fields of ``Config``): this process becomes rank 0 of a world whose
    ranks all hold the same."""

    def make(size: int, **settings: Any) -> FakeEngine:
        collectives.table.forget()
        engine = FakeEngine(size=size)
        topology = Topology(0, size, 0, size, 0, 1, homogeneous=True, hosts=("here",) * size)
        # In such a world the sum of all ranks' fingerprints would be twice this rank's.
        config = Config(**{"dynamic_process_sets": True, "replica_check": "off", **settings})
        runtime = lifecycle.Runtime(engine, topology, config, groups=[list(range(topology.size))])  # type: ignore[arg-type]
        monkeypatch.setattr(lifecycle, "current", lambda: runtime)
        monkeypatch.setattr(lifecycle, "is_initialized", lambda: True)
        return engine

    return make


@pytest.fixture
def no_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """``init()`` has not been called."""

    def current() -> None:
        raise NotInitializedError

    monkeypatch.setattr(lifecycle, "current", current)
    monkeypatch.setattr(lifecycle, "is_initialized", lambda: False)
