"""``DistributedOptimizer`` around optimizers of others: each trains as it does without,
whatever is done to it."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.foreign_optimizers import FOREIGN, SAM, momentum_sgd
from tests.unit.torch.models import backward, two_layers

import horovod.torch as hvd

pytestmark = pytest.mark.timeout(60)

Pair = tuple[Any, Any]  # a model and its optimizer


def as_it_is(model: Any, optimizer: Any) -> Pair:
    return model, optimizer


def deep_copied(model: Any, optimizer: Any) -> Pair:
    return copy.deepcopy((model, optimizer))


def pickled(model: Any, optimizer: Any) -> Pair:
    return pickle.loads(pickle.dumps((model, optimizer)))  # type: ignore[no-any-return]


def state_loaded(model: Any, optimizer: Any) -> Pair:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file))
    return model, optimizer


def scheduler_made(model: Any, optimizer: Any) -> Pair:
    if isinstance(optimizer, torch.optim.Optimizer):
        torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5).step()
    else:
        optimizer.param_groups[0]["lr"] *= 0.5
    return model, optimizer


def group_added(model: Any, optimizer: Any) -> Pair:
    optimizer.add_param_group({"params": list(model[0].parameters())})
    return model, optimizer


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
@pytest.mark.parametrize(
    ("name", "change", "op"),
    [
        *itertools.product(
            FOREIGN,
            [as_it_is, deep_copied, pickled, state_loaded, scheduler_made, group_added],
            [hvd.Average],
        ),
        # Adasum differs in how it steps: for each parameter alone. The class left out counts its calls.
        *itertools.product([name for name in FOREIGN if name != "needy"], [as_it_is], [hvd.Adasum]),
    ],
)
def test_training_is_that_of_the_plain_optimizer(
    name: str, change: Callable[[Any, Any], Pair], op: int, make_world: MakeWorld
) -> None:
    """All ranks of this world hold the same, so what they average or combine is what one process has."""
    make = FOREIGN[name]
    alone, model = two_layers(), two_layers()

    def trained(part: Any) -> Any:
        return part[1].parameters() if change is group_added else part.parameters()

    reference = make(trained(alone))
    optimizer: Any = make(trained(model))
    make_world(2)
    for step in range(6):
        if step == 2:  # the state goes along
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op)
            assert isinstance(optimizer, torch.optim.Optimizer)
        if step == 4:
            model, optimizer = change(model, optimizer)
            if change in (scheduler_made, group_added):
                change(alone, reference)
        for net, of in ((model, optimizer), (alone, reference)):
            of.zero_grad()
            backward(net)
            of.step()
        for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine, expected, rtol=1e-5, atol=1e-6), (step, mine, expected)


@pytest.mark.parametrize("name", FOREIGN)
def test_estimators_send_an_optimizer_as_it_is(name: str) -> None:
    packing = pytest.importorskip("horovod.spark.torch.packing", reason="Spark is not installed")
    model, alone = two_layers(), two_layers()
    reference = FOREIGN[name](alone.parameters())
    packed = packing.PackedOptimizer.of(FOREIGN[name](model.parameters()), model)
    optimizer = packed.optimizer(model)
    for net, of in ((model, optimizer), (alone, reference)):
        for _ in range(2):
            of.zero_grad()
            backward(net)
            of.step()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine, expected)


def test_a_scheduler_made_before_wrapping_is_obeyed_after_a_state_was_loaded(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    plain = momentum_sgd(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer: Any = hvd.DistributedOptimizer(plain, model.named_parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    backward(model)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_step_that_was_replaced_before_wrapping_is_taken(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    plain: Any = momentum_sgd(model.parameters())
    own, calls = plain.step, []

    def counted(closure: Any = None) -> Any:
        calls.append(model[0].weight.grad is not None)
        return own(closure)

    plain.step = counted
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    backward(model)
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert calls == [True]
    assert not torch.equal(model[0].weight, before)


def test_step_hooks_work_for_classes_without_the_constructor_of_pytorch(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(FOREIGN["lookahead"](model.parameters()), model.named_parameters())
    seen: list[Any] = []
    optimizer.register_step_post_hook(lambda of, args, kwargs: seen.append(of))
    backward(model)
    optimizer.step()
    assert seen == [optimizer]


def test_an_attribute_that_both_need_is_an_error_with_its_name(make_world: MakeWorld) -> None:
    make_world(2)

    class Taken(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=0.1)
            self.op = "mean"

    with pytest.raises(ValueError, match=r"Taken keeps something under the name op"):
        hvd.DistributedOptimizer(Taken(two_layers().parameters()))


@pytest.mark.parametrize("by_closure", [False, True])
def test_sam_with_an_exchange_before_each_half(by_closure: bool, make_world: MakeWorld) -> None:
    """As docs/optimizer.md says it."""
    alone, model = two_layers(), two_layers()
    make_world(2)
    reference = SAM(alone.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9)
    optimizer: Any = hvd.DistributedOptimizer(
        SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9), model.named_parameters()
    )
    for _ in range(3):
        backward(alone)
        reference.climb()
        backward(alone)
        reference.descend()
        reference.zero_grad()
        backward(model)
        optimizer.synchronize()
        if by_closure:
            optimizer.step(lambda: backward(model))
        else:
            optimizer.climb()
            backward(model)
            optimizer.synchronize()
            optimizer.descend()
        optimizer.zero_grad()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(mine, expected)
