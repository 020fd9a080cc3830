"""Which gradients are moved into shared memory, when, and what happens where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import backward, two_layers, wrap
from torch.utils import dlpack

from horovod.runtime import lifecycle, world

pytestmark = pytest.mark.timeout(30)


def addresses(model: torch.nn.Module) -> list[int]:
    return [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int, none: bool = False) -> None:
    for _ in range(count):
        optimizer.zero_grad(set_to_none=none)
        backward(model)
        optimizer.step()


def test_gradients_that_stay_are_moved_once(make_world: MakeWorld) -> None:
    engine = make_world(2, shared_gradients="auto")
    engine.shared_left = 100
    model = two_layers()
    optimizer = wrap(model)
    steps(model, optimizer, 1)
    objects = [parameter.grad for parameter in model.parameters()]
    first = addresses(model)
    steps(model, optimizer, 1)
    moved = addresses(model)
    assert not set(first) & set(moved)
    assert engine.shared_left == 100 - len(first)
    steps(model, optimizer, 20)
    assert addresses(model) == moved
    assert engine.shared_left == 100 - len(first)
    assert all(p.grad is g for p, g in zip(model.parameters(), objects, strict=True))


def test_gradients_that_are_dropped_are_not_moved(make_world: MakeWorld) -> None:
    engine = make_world(2, shared_gradients="auto")
    engine.shared_left = 100
    model = two_layers()
    steps(model, wrap(model), 20, none=True)
    assert engine.shared_left == 100


@pytest.mark.parametrize("choice", ["0", "1"])
def test_the_setting_decides(choice: str, make_world: MakeWorld) -> None:
    engine = make_world(2, shared_gradients=choice)
    engine.shared_left = 100
    model = two_layers()
    steps(model, wrap(model), 3, none=True)
    assert engine.shared_left == (100 if choice == "0" else 100 - len(addresses(model)))


def test_where_memory_ends_the_others_stay_private_and_it_is_said_once(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_world(2, shared_gradients="auto")
    engine.shared_left = 1
    model = two_layers()
    optimizer = wrap(model)
    steps(model, optimizer, 1)
    before = addresses(model)
    steps(model, optimizer, 5)
    assert sum(a != b for a, b in zip(before, addresses(model), strict=True)) == 1
    assert [record.message for record in caplog.records] == [
        "Rank 0: no shared memory is left for gradients; the others are exchanged through copies."
    ]


def test_without_shared_memory_nothing_is_said(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    make_world(2, shared_gradients="auto")
    model = two_layers()
    steps(model, wrap(model), 5)
    assert not caplog.records


def test_a_machine_that_is_short_of_memory_is_left_alone(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_world(2, shared_gradients="auto")
    engine.shared_left = 100
    monkeypatch.setattr(world, "available_bytes", lambda: 1)
    model = two_layers()
    steps(model, wrap(model), 5)
    assert engine.shared_left == 100


def test_the_end_of_the_world_takes_them_out(make_world: MakeWorld) -> None:
    engine = make_world(2, shared_gradients="auto")
    engine.shared_left = 100
    model = two_layers()
    optimizer = wrap(model)
    steps(model, optimizer, 3)
    moved = addresses(model)
    values = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    (owner,) = lifecycle.current().sharing
    owner.leave()
    assert not set(moved) & set(addresses(model))
    for parameter, value in zip(model.parameters(), values, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, value)
    steps(model, optimizer, 2)  # in the next world they move again
    assert engine.shared_left == 100 - 2 * len(moved)


Alias = Callable[[torch.Tensor], torch.Tensor]
ALIASES: dict[str, Alias] = {
    "view": lambda gradient: gradient.view(-1),
    "row": lambda gradient: gradient[0],
    "detach": lambda gradient: gradient.detach(),
    "data": lambda gradient: gradient.data,
    "numpy": lambda gradient: torch.from_numpy(gradient.numpy()),
    "dlpack": lambda gradient: dlpack.from_dlpack(gradient),
    "itself": lambda gradient: gradient,
    "closure": lambda gradient: (lambda: gradient.view(-1))(),
}


@pytest.mark.parametrize("alias", list(ALIASES))
def test_by_default_what_was_made_of_a_gradient_stays_it(alias: str, make_world: MakeWorld) -> None:
    """Taken after the first step, as flat optimizers and loggers do."""
    engine = make_world(2)
    engine.shared_left = 100
    model = two_layers()
    optimizer = wrap(model)
    steps(model, optimizer, 1)
    gradients = [parameter.grad for parameter in model.parameters()]
    taken = [ALIASES[alias](gradient) for gradient in gradients if gradient is not None]
    for _ in range(4):
        steps(model, optimizer, 1)
        for parameter, other in zip(model.parameters(), taken, strict=True):
            assert parameter.grad is not None
            assert torch.equal(ALIASES[alias](parameter.grad), other)
            other.mul_(0.5)  # clipping through what was saved
            assert torch.equal(ALIASES[alias](parameter.grad), other)
            assert other.data_ptr() == parameter.grad.data_ptr()
