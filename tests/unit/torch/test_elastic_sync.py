"""A failure in the middle of ``TorchState.sync``: what was saved before is still whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from horovod.errors import PeerLostError
from horovod.torch.elastic import TorchState
from horovod.torch.elastic.state import ModelStateHandler


def test_what_came_before_the_failure_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    state: Any = TorchState(model, None, step=3)

    def sync(handler: Any) -> None:
        torch.nn.init.constant_(handler.value.weight, 2.0)  # rank 0 is one step ahead

    def lost(value: object) -> object:
        if isinstance(value, dict):
            raise PeerLostError("rank 0 is gone", rank=0)
        return value

    monkeypatch.setattr(ModelStateHandler, "sync", sync)
    state._bcast_object, state._rank = lost, lambda: 1
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert state.step == 3
    assert model.weight.tolist() == [[1.0, 1.0]]
