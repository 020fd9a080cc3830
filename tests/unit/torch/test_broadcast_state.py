"""`broadcast_optimizer_state` as far as one process can see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import two_layers

import horovod.torch as hvd

pytestmark = pytest.mark.timeout(30)


def make_state(name: str) -> Callable[[], torch.optim.Optimizer]:
    return lambda: getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(2, 2))])


def test_broadcast_optimizer_state_refuses_lbfgs(make_world: MakeWorld) -> None:
    make_world(2)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(make_state("LBFGS")(), 0)


def test_broadcast_optimizer_state_of_something_else_says_what_to_write(make_world: MakeWorld) -> None:
    make_world(2)
    given: Any = two_layers()
    with pytest.raises(ValueError, match=r"got a Sequential: .* hvd\.broadcast_optimizer_state\(optimizer"):
        hvd.broadcast_optimizer_state(given, 0)


def test_a_fresh_optimizer_stays_fresh_and_has_zero_gradients(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    model[0].bias.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    plain = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.5)
    for optimizer in (plain, hvd.DistributedOptimizer(plain)):
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        assert model[0].bias.grad is None
        assert model[0].weight.grad is not None
        assert not optimizer.state


def test_sgd_on_sparse_embeddings_gets_sparse_zero_gradients(make_world: MakeWorld) -> None:
    make_world(2)
    model = torch.nn.Embedding(6, 3, sparse=True)
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1), 0, model=model)
    gradient = model.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
