"""`step(closure)`: what is exchanged, and how often."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, grads, two_layers, wrap

import horovod.torch as hvd

pytestmark = pytest.mark.timeout(30)
LOSS = "DistributedOptimizer.closure_loss"


def test_gradients_and_loss_of_a_closure_are_exchanged_once(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    local: list[torch.Tensor] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = backward(model)
        local.extend(grads(model))
        return loss.detach()

    before = two_layers()(torch.ones(4, 3)).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = optimizer.step(closure)
    assert torch.allclose(loss, 2 * before)
    assert sorted(map(str, engine.names)) == sorted([*NAMES, LOSS])
    assert all(torch.equal(a, 2 * b) for a, b in zip(grads(model), local, strict=True))


def test_every_evaluation_of_lbfgs_is_exchanged(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), max_iter=3), named_parameters=model.named_parameters()
    )
    calls: list[None] = []

    def closure() -> torch.Tensor:
        calls.append(None)
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(4, 3)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(calls) > 1
    assert engine.names.count(LOSS) == engine.names.count("0.bias") == len(calls)


def test_gradients_from_before_the_step_count_if_the_closure_only_returns(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    backward(model)
    local = grads(model)
    assert optimizer.step(lambda: "any value") == "any value"
    assert len(engine.log) == 4
    assert all(torch.equal(a, 2 * b) for a, b in zip(grads(model), local, strict=True))


def test_gradients_from_before_the_step_may_be_cleared_in_the_closure(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    local = grads(model)

    def closure() -> None:
        optimizer.zero_grad()
        backward(model)

    optimizer.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(grads(model), local, strict=True))
    optimizer.zero_grad()


def test_passes_of_a_closure_are_summed(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, backward_passes_per_step=2)

    def closure() -> None:
        optimizer.zero_grad()
        backward(model)
        backward(model)

    optimizer.step(closure)
    assert len(engine.log) == 4


def test_a_closure_that_synchronizes_is_not_exchanged_again(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)

    def closure() -> None:
        optimizer.zero_grad()
        backward(model)
        optimizer.synchronize()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(closure)
    assert len(engine.log) == 4


def test_synchronize_and_then_an_idle_closure_warns_once(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize") as seen:
        optimizer.step(lambda: None)
    assert len(seen) == 1


def test_skip_synchronize_leaves_the_closure_local(make_world: MakeWorld) -> None:
    engine = make_world(2)
    optimizer = wrap(two_layers())
    with optimizer.skip_synchronize():
        assert optimizer.step(lambda: 3.0) == 3.0
    assert engine.log == []


def test_an_error_in_a_closure_leaves_the_optimizer_usable(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model)

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(broken)
    backward(model)
    with pytest.raises(AssertionError, match="race"):
        optimizer.zero_grad()
    optimizer.step()
