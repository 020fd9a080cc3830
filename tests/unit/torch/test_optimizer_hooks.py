"""Hooks of the user around the exchange, mixed precision, and learning rate schedulers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, grads, two_layers, wrap
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from horovod.errors import DuplicateNameError

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("size", [1, 2])
def test_a_synchronize_hook_sees_exchanged_gradients_once_per_step(size: int, make_world: MakeWorld) -> None:
    make_world(size)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    seen: list[list[torch.Tensor]] = []
    handle = optimizer.register_synchronize_post_hook(lambda of: seen.append(grads(model)))
    backward(model)
    local = grads(model)
    optimizer.step()
    assert len(seen) == 1
    assert all(torch.equal(a, size * b) for a, b in zip(seen[0], local, strict=True))
    handle.remove()
    optimizer.step()
    assert len(seen) == 1


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("groups", [None, 2])
def test_a_gradient_hook_changes_what_is_exchanged(
    size: int, groups: int | None, make_world: MakeWorld
) -> None:
    make_world(size)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum, groups=groups)

    def replace(parameter: Any) -> None:
        parameter.grad = torch.ones_like(parameter)

    optimizer.register_gradient_hook(replace)
    backward(model)
    optimizer.synchronize()
    assert all(torch.equal(g, torch.full_like(g, size)) for g in grads(model))


def test_gradient_hooks_run_after_the_last_pass_only(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, backward_passes_per_step=2)
    calls: list[torch.Tensor] = []
    handle = optimizer.register_gradient_hook(calls.append)
    backward(model)
    assert calls == []
    backward(model)
    assert len(calls) == 4
    optimizer.step()
    assert len(calls) == 4
    handle.remove()
    optimizer.step()
    assert len(calls) == 4


def test_a_pre_hook_holds_the_exchange_back(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    seen: list[list[torch.Tensor]] = []
    handle = optimizer.register_synchronize_pre_hook(lambda of: seen.append(grads(model)))
    backward(model)
    local = grads(model)
    assert engine.log == []
    optimizer.step()
    assert len(engine.log) == 4
    assert all(torch.equal(a, b) for a, b in zip(seen[0], local, strict=True))
    handle.remove()
    optimizer.zero_grad()
    backward(model)
    assert len(engine.log) == 8
    optimizer.step()


def test_hooks_of_the_original_optimizer_are_kept(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[Any] = []
    handle = plain.register_step_post_hook(lambda *_: calls.append(None))
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.step()
    assert len(calls) == 1
    handle.remove()
    optimizer.step()
    assert len(calls) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_exchanges_before_it_looks(fused: bool, make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, fused=fused), named_parameters=model.named_parameters()
    )
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.scale(model(torch.ones(4, 3)).sum()).backward()
        assert len(engine.pending) == 4
        scaler.step(optimizer)
        scaler.update()
        assert len(engine.log) == 4
        expected = two_layers()
        backward(expected)
        for now, old, q in zip(model.parameters(), before, expected.parameters(), strict=True):
            assert q.grad is not None
            assert torch.allclose(now, old - 0.1 * q.grad)
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    assert len(engine.log) == 8


def test_gradients_that_are_assigned_after_a_step_left_out_are_exchanged(make_world: MakeWorld) -> None:
    """No hook tells of them, and the loop clears the gradients itself."""
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (torch.inf, 1.0):
        engine.log.clear()
        for parameter in model.parameters():
            parameter.grad = scaler.scale(torch.full_like(parameter, factor))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert len(engine.log) == 4
    assert scaler.get_scale() == 4.0


def test_two_optimizers_of_the_same_weights_are_named(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    both = [wrap(model), wrap(model)]
    with pytest.raises(ValueError, match=r"Two distributed optimizers have the parameter 1\.") as caught:
        backward(model)
    assert isinstance(caught.value, DuplicateNameError)
    for optimizer in both:
        optimizer.load_state_dict(optimizer.state_dict())  # drops what is in flight
    del both, optimizer
    gc.collect()
    alone = wrap(model)
    backward(model)
    alone.step()


def test_layers_in_two_reentrant_checkpoints_are_named(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    wrap_of_model = wrap(model)
    inputs = torch.ones(4, 3, requires_grad=True)
    halves = [checkpoint(model, inputs, use_reentrant=True) for _ in range(2)]
    with pytest.raises(AssertionError, match="use_reentrant=False"):
        (halves[0] + halves[1]).sum().backward()
    assert wrap_of_model._exchange.in_flight


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_a_compiled_step_leaves_its_graph_for_the_exchange(op: int, make_world: MakeWorld) -> None:
    make_world(2)
    model, plain = two_layers(), two_layers()
    optimizer, reference = wrap(model, op=op), torch.optim.SGD(plain.parameters(), lr=0.5)
    exchange = optimizer._exchange
    finish, traced = exchange.finish, []

    def watched(*arguments: Any) -> None:
        traced.append(torch.compiler.is_compiling())
        finish(*arguments)

    exchange.finish = watched

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for _ in range(3):
        for net, each in ((model, optimizer), (plain, reference)):
            each.zero_grad()
            backward(net)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler itself
            step()
        reference.step()
    assert traced == [False] * 3
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda of: lr_scheduler.LambdaLR(of, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda of: lr_scheduler.MultiplicativeLR(of, lambda _: 0.9),
    "StepLR": lambda of: lr_scheduler.StepLR(of, 1),
    "MultiStepLR": lambda of: lr_scheduler.MultiStepLR(of, [1, 2]),
    "ConstantLR": lambda of: lr_scheduler.ConstantLR(of, total_iters=2),
    "LinearLR": lambda of: lr_scheduler.LinearLR(of),
    "ExponentialLR": lambda of: lr_scheduler.ExponentialLR(of, 0.9),
    "PolynomialLR": lambda of: lr_scheduler.PolynomialLR(of),
    "CosineAnnealingLR": lambda of: lr_scheduler.CosineAnnealingLR(of, 4),
    "CosineAnnealingWarmRestarts": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 4),
    "OneCycleLR": lambda of: lr_scheduler.OneCycleLR(of, 0.1, total_steps=6),
    "CyclicLR": lambda of: lr_scheduler.CyclicLR(of, 0.1, 0.2, step_size_up=2),
    "ReduceLROnPlateau": lambda of: lr_scheduler.ReduceLROnPlateau(of, patience=0),
    "SequentialLR": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.ConstantLR(of), lr_scheduler.StepLR(of, 1)], [1]
    ),
    "ChainedScheduler": lambda of: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(of), lr_scheduler.ExponentialLR(of, 0.9)]
    ),
}


@pytest.mark.parametrize("made_first", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, made_first: bool, make_world: MakeWorld) -> None:
    """Like on the plain optimizer, without complaints about the order of calls, also of one that was made
    before the optimizer was wrapped."""

    def rates(wrapped: bool) -> list[float]:
        model = two_layers()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer) if made_first else None
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer)
        scheduler = SCHEDULERS[name](optimizer) if scheduler is None else scheduler
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    make_world(2)
    expected = rates(wrapped=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rates(wrapped=True) == expected


def test_names_of_the_exchange_are_those_of_the_parameters(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    wrap(model).step()
    assert sorted(map(str, engine.names)) == sorted(NAMES)
