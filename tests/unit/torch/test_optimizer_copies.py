"""Copies, pickles, checkpoints, and parameters that come later."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, two_layers, wrap

import horovod.torch as hvd

pytestmark = pytest.mark.timeout(30)


def momentum(optimizer: Any) -> list[torch.Tensor]:
    return [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_are_wrapped_in_the_same_way(copied: Callable[[Any], Any], make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        op=hvd.Sum,
        groups=[[model[0].weight, model[1].bias]],
        backward_passes_per_step=2,
        sparse_as_dense=True,
    )
    backward(model)
    optimizer.step()
    engine.log.clear()
    other_model, other = copied((model, optimizer))
    assert engine.log == []
    assert type(other) is not torch.optim.SGD
    assert issubclass(type(other), torch.optim.SGD)
    assert (other.op, other.backward_passes_per_step, other.sparse_as_dense) == (hvd.Sum, 2, True)
    assert other.process_set is hvd.global_process_set
    assert other.param_groups[0]["lr"] == 0.5
    assert all(torch.equal(a, b) for a, b in zip(momentum(other), momentum(optimizer), strict=True))
    assert other.param_groups[0]["params"][0] is other_model[0].weight
    backward(other_model)
    backward(other_model)
    assert sorted(str(name) for name in engine.names) == ["0.bias", "0.weight", "1.weight"]
    other.step()
    assert not torch.equal(other_model[0].weight, model[0].weight)
    optimizer.zero_grad()


def test_copies_in_a_world_of_one(make_world: MakeWorld) -> None:
    make_world(1)
    model = two_layers()
    optimizer = wrap(model, groups=[[model[0].weight]])
    other_model, other = copy.deepcopy((model, optimizer))
    backward(other_model)
    other.step()
    for copied, original in zip(other_model.parameters(), model.parameters(), strict=True):
        assert copied.grad is not None
        assert torch.equal(copied, original - optimizer.param_groups[0]["lr"] * copied.grad)
        assert original.grad is None


def test_a_copy_keeps_the_process_set_itself(make_world: MakeWorld) -> None:
    make_world(2)
    members = hvd.ProcessSet([0, 1])
    members.process_set_id = 1
    model = two_layers()
    assert copy.deepcopy(wrap(model, process_set=members)).process_set is members


def test_a_model_whose_gradients_are_watched_can_be_pickled(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    wrap(model)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again[0].weight, model[0].weight)


def test_states_are_those_of_the_plain_optimizer(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    plain = torch.optim.Adam(model.parameters())
    backward(model)
    plain.step()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(optimizer.state_dict())
    assert len(optimizer.state) == 4


@pytest.mark.parametrize("named", [False, True])
def test_added_parameters_take_part(named: bool, make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    names = model.named_parameters() if named else None
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model[1].parameters(), lr=0.1), named_parameters=names
    )
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.2})
    backward(model)
    assert len(engine.log) == 4
    if named:
        assert sorted(map(str, engine.names)) == sorted(NAMES)
    optimizer.step()


def test_added_parameters_need_a_name_if_the_others_have_one(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model[1].parameters(), lr=0.1), named_parameters=model[1].named_parameters()
    )
    with pytest.raises(ValueError, match=r"2 parameters.*not named.*add_param_group"):
        optimizer.add_param_group({"params": model[0].parameters()})
    assert len(optimizer.param_groups) == 1


def test_what_was_frozen_at_first_takes_part_once_it_is_not(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = wrap(model)
    backward(model)
    optimizer.step()
    assert len(engine.log) == 2
    model[0].requires_grad_(True)
    for total in (6, 10):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        assert len(engine.log) == total


def test_what_is_frozen_on_all_ranks_is_left_alone(make_world: MakeWorld) -> None:
    """Zeros for the exchange must not become a gradient that weight decay works with."""
    make_world(2)
    model = two_layers()
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5))
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    backward(model)
    optimizer.step()
    assert model[0].weight.grad is None
    assert torch.equal(model[0].weight, before)


def test_attributes_of_the_original_optimizer_are_kept(make_world: MakeWorld) -> None:
    make_world(2)

    class Custom(torch.optim.SGD):
        def __init__(self, params: Any, factor: float = 1.0) -> None:
            super().__init__(params, lr=0.1)
            self.factor = factor

    optimizer: Any = hvd.DistributedOptimizer(Custom(two_layers().parameters(), factor=3.0))
    assert optimizer.factor == 3.0


def test_the_initial_accumulator_of_adagrad_is_kept(make_world: MakeWorld) -> None:
    make_world(2)
    plain = torch.optim.Adagrad(two_layers().parameters(), initial_accumulator_value=0.25)
    optimizer = hvd.DistributedOptimizer(plain)
    assert all(torch.all(state["sum"] == 0.25) for state in optimizer.state.values())
