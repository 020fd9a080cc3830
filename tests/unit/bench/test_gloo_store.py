"""The file through which the ranks of Gloo meet goes when nobody looks into it any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from horovod.bench import rank


def test_no_rank_has_a_store_when_the_folder_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's store waits five minutes if its file goes between two looks of its end."""
    order: list[str] = []

    class Store:
        def __init__(self, *_: Any) -> None:
            order.append("store made")

        def __del__(self) -> None:
            order.append("store ended")

    def gloo(store: Store, *_: Any) -> Any:
        return SimpleNamespace(close=lambda: order.append("group ended"))

    monkeypatch.setattr(rank, "_distributed", SimpleNamespace(FileStore=Store))
    monkeypatch.setattr(rank, "Gloo", gloo)
    monkeypatch.setattr("horovod.bench.rank.hvd.broadcast_object", lambda value: value)
    monkeypatch.setattr("horovod.bench.rank.hvd.rank", lambda: 0)
    monkeypatch.setattr("horovod.bench.rank.hvd.size", lambda: 1)
    monkeypatch.setattr("horovod.bench.rank.hvd.barrier", lambda: order.append("barrier"))
    bench: Any = SimpleNamespace(_tells=True, _members=[0])
    with rank._Bench._gloo(bench):
        pass
    assert order == ["store made", "group ended", "store ended", "barrier"]
