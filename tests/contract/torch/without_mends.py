"""Replicas that would differ without one of the mends that keep them equal. Each mend is turned off, on one
rank where all ranks would otherwise go wrong alike, and the comparison of replicas names the outcome.

Not here, as all ranks stay equal without them, so that no comparison of ranks can tell: zeros in the place of
gradients that no rank has (each rank decays the same weight), averages of integers that overflow, a
``get_gradients`` of the user that is passed over, random states that a rollback does not restore. Nor here: a
gradient that is sparse on some ranks alone, which fails without its mend, if later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from tests.contract.replica_reports import is_named
from tests.contract.torch.replicas import is_last, net, own_data, settle, train, wrapped
from tests.contract.world import Cases
from torch import nn

import horovod.torch as hvd

CASES = Cases()


class NobodyAbsent:
    """Collectives whose results do not say that no rank had a gradient."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def synchronize_all(self, handles: Any) -> list[Any]:
        self._whole.synchronize_all(handles)
        return []


def zeros_where_no_rank_has_a_gradient() -> None:
    """On one rank, whose weight decay then moves what nobody uses."""
    model = net()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5))
    if is_last():
        optimizer._exchange._collectives = NobodyAbsent(optimizer._exchange._collectives)
    train(model, optimizer)


def gradients_that_change_while_they_are_exchanged() -> None:
    """After the sum is there, and before anybody waits for it, as clipping without ``synchronize()`` meets it
    now and then."""
    model = net()
    optimizer = wrapped(model)
    exchange = optimizer._exchange
    unseen = mock.patch.object(exchange._store, "changed", return_value=[])
    late = mock.patch.object(exchange, "_late", False)
    with unseen, late, mock.patch.object(exchange, "_exchanges_late", return_value=False):
        for step in range(4):
            optimizer.zero_grad()
            model(own_data(step)).square().mean().backward()
            handles = [handle for handle in exchange._handles if handle > 0]
            while not all(map(hvd.poll, handles)):
                pass
            nn.utils.clip_grad_norm_(model.parameters(), 0.1 / (1 + hvd.rank()))
            optimizer.step()
    settle(optimizer._replicas)


def parameters_that_were_replaced_after_wrapping() -> None:
    model = net()
    optimizer = wrapped(model)

    def replace(step: int) -> None:
        if step == 1:
            model[2].bias = nn.Parameter(torch.zeros(2))
            optimizer.param_groups[0]["params"][3] = model[2].bias

    with mock.patch("horovod.torch.wrapped_optimizer._differs", return_value=False):
        train(model, optimizer, replace)


def imaginary_parts_that_are_left_out() -> None:
    model = nn.ParameterDict({"phase": nn.Parameter(torch.ones(3, dtype=torch.complex64))})
    phase = model["phase"]
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), 0.1))
    store = optimizer._exchange._store

    def with_own_part(reduced: torch.Tensor) -> torch.Tensor:
        assert phase.grad is not None
        return torch.complex(reduced, phase.grad.imag)

    half = mock.patch.object(store, "as_real", lambda gradient: gradient.detach().real)
    with half, mock.patch.object(store, "as_complex", with_own_part):
        for _ in range(4):
            optimizer.zero_grad()
            (phase * (1 + 1j * hvd.rank())).real.sum().backward()
            optimizer.step()
    settle(optimizer._replicas)


DIFFERENT: dict[Callable[[], None], tuple[str, ...]] = {
    zeros_where_no_rank_has_a_gradient: ("rank {last} has other", "in 1 of 5 tensors: unused."),
    gradients_that_change_while_they_are_exchanged: ("in 4 of 4 tensors", "that was changed while it was"),
    parameters_that_were_replaced_after_wrapping: (
        "in 1 of 4 tensors: parameter 3 of group 0",
        "equal after step 2",
    ),
    imaginary_parts_that_are_left_out: ("in 1 of 1 tensors: phase.",),
}


def told(case: Callable[[], None], words: tuple[str, ...]) -> None:
    if hvd.size() == 2:
        is_named(case, *words)


for case, words in DIFFERENT.items():
    CASES.add_as(f"without_mends_{case.__name__}", functools.partial(told, case, words))
