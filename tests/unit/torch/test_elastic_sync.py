"""A failure in the middle of ``TorchState.sync``: what was saved before is still whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.torch.lent import contents, filled

from horovod.errors import PeerLostError
from horovod.torch.elastic import TorchState
from horovod.torch.elastic import state as module
from horovod.torch.elastic.state import ModelStateHandler


def on_rank(state: Any, rank: int, broadcast: Callable[[Any], Any]) -> None:
    state._rank, state._bcast_object = lambda: rank, broadcast


def sync_of_rank_0(state: Any, others: Callable[[dict[str, Any]], None]) -> None:
    """A sync of what has just been saved.

    Args:
        others: what other ranks do, with what rank 0 lends, before rank 0 goes on.
    """
    told: list[Any] = []

    def broadcast(value: Any) -> Any:
        told.append(value)
        return value

    def met() -> None:
        _, _, lent = told[0]
        assert lent["model"] is not None
        others(lent)

    on_rank(state, 0, broadcast)
    state._note_saved()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "barrier", met)
        state.sync()


def of_rank_0(lent: dict[str, Any], plain: object) -> Callable[[Any], Any]:
    """The broadcasts of a rank 0: that of the parts with what it lends, and that of plain values."""

    def broadcast(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(plain, Exception):
                raise plain
            return plain
        what, parts, _ = value
        return what, parts, lent

    return broadcast


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which rank 0 has a model of twos."""

    def sync(handler: Any) -> None:
        if handler.value.weight[0, 0] != 2.0:  # rank 0 writes to nothing
            with torch.no_grad():
                for parameter in handler.value.parameters():
                    parameter.fill_(2.0)

    monkeypatch.setattr(ModelStateHandler, "sync", sync)


@pytest.mark.usefixtures("two_ranks")
def test_what_came_before_the_failure_is_not_kept() -> None:
    model = filled(1.0)
    state: Any = TorchState(model, None, step=3)
    on_rank(state, 1, of_rank_0({}, PeerLostError("rank 0 is gone", rank=0)))
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert state.step == 3
    assert contents(model) == [1.0]


@pytest.mark.usefixtures("two_ranks")
def test_what_was_borrowed_is_saved_when_all_has_come() -> None:
    first: Any = TorchState(filled(2.0), None, step=4)
    model = filled(1.0)
    state: Any = TorchState(model, None, step=3)

    def join(lent: dict[str, Any]) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "barrier", lambda: None)
            on_rank(state, 1, of_rank_0(lent, {"step": 4, "optimizer": None}))
            state.sync()

    sync_of_rank_0(first, join)
    assert state._handlers["model"]._copies._whole.is_borrowed
    with torch.no_grad():
        first.model.weight.fill_(5.0)
        model.weight.fill_(6.0)
    first.save()
    first.save()
    first.save()
    state.restore()
    assert (state.step, contents(model)) == (4, [2.0])


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("when", ["as all meet", "after that"])
def test_what_was_borrowed_before_the_failure_is_not_kept(when: str) -> None:
    lost = PeerLostError("rank 0 is gone", rank=0)
    model = filled(1.0)
    state: Any = TorchState(model, None, step=3)

    def refuse() -> None:
        raise lost

    def join(lent: dict[str, Any]) -> None:
        on_rank(state, 1, of_rank_0(lent, lost))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "barrier", refuse if when == "as all meet" else lambda: None)
            with pytest.raises(PeerLostError):
                state.sync()

    sync_of_rank_0(TorchState(filled(2.0), None, step=4), join)
    state.restore()
    assert (state.step, contents(model)) == (3, [1.0])
    on_rank(state, 1, of_rank_0({}, {"step": 9, "optimizer": None}))  # of another one, which lends nothing
    state.sync()
    with torch.no_grad():
        model.weight.fill_(6.0)
    state.restore()
    assert (state.step, contents(model)) == (9, [2.0])


@pytest.mark.usefixtures("two_ranks")
def test_a_lender_that_has_not_met_the_others_takes_other_memory() -> None:
    state: Any = TorchState(filled(2.0), None, step=4)
    kept = state._handlers["model"]._copies._whole.memory

    def refuse(lent: object) -> None:
        raise PeerLostError("rank 1 is gone", rank=1)

    with pytest.raises(PeerLostError):
        sync_of_rank_0(state, refuse)
    for _ in range(4):
        state.save()
        assert state._handlers["model"]._copies._whole.memory is not kept
    assert kept.content.view("float32")[0] == 2.0


def test_gradients_of_a_step_that_failed_do_not_count_in_the_next_one() -> None:
    model = filled(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state: Any = TorchState(model, optimizer)
    model(torch.ones(1, model.in_features)).sum().backward()
    state.restore()
    assert [parameter.grad for parameter in model.parameters()] == [None] * len(list(model.parameters()))
