"""Comparison of replicas: what makes them differ is named, and what only looks like it is passed over."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.replica_reports import listening, setting
from tests.contract.world import Cases
from torch import nn

import horovod.torch as hvd
from horovod.errors import ReplicasDifferError
from horovod.runtime import lifecycle

CASES = Cases()
STEPS = 5


def settle(*checks: Any) -> None:
    """Wait for the comparisons that are under way."""
    for check in checks:
        while check._pending:
            check.collect()


def net(seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def own_data(step: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * hvd.rank() + step))


def wrapped(model: nn.Module, optimizer: Any = None, broadcast: bool = True, **options: Any) -> Any:
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    made = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    if broadcast:
        hvd.broadcast_parameters(model.state_dict(), 0)
    return made


def train(
    model: nn.Module, optimizer: Any, after: Callable[[int], None] = lambda step: None, steps: int = STEPS
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(own_data(step)).square().mean().backward()
        optimizer.step()
        after(step)
    settle(optimizer._replicas)


def is_last() -> bool:
    return hvd.rank() == hvd.size() - 1


# -- what makes replicas differ -----------------------------------------------------------------------------


def is_named(case: Callable[[], Any], *words: str) -> None:
    """The first rank alone says once what ``case`` has done, with ``words``."""
    if hvd.size() not in (2, 3) or (case is members_differ and hvd.size() == 2):
        return
    with listening() as lines:
        case()
    everybody = hvd.allgather_object(lines)
    assert [len(each) for each in everybody] == [1] + [0] * (hvd.size() - 1), everybody
    for word in words:
        assert word.format(last=hvd.size() - 1) in everybody[0][0], everybody[0][0]


def forgotten_broadcast() -> None:
    lifecycle_broadcasts(False)
    model = net(hvd.rank())
    train(model, wrapped(model, broadcast=False), steps=9)


def lifecycle_broadcasts(happened: bool) -> None:
    """Other cases of this process have broadcast."""
    from horovod.gradients.replicas import broadcasts

    broadcasts.happened = happened


def wrapper_thrown_away() -> None:
    model = net()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hvd.DistributedOptimizer(optimizer)
    step = 0
    with listening() as lines:
        while step < STEPS or not any(hvd.allgather_object(bool(lines))):  # nothing waits for a comparison
            optimizer.zero_grad()
            model(own_data(step)).square().mean().backward()
            optimizer.step()
            step += 1


def unused_parameter_moved() -> None:
    model = net()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))

    def decay(step: int) -> None:
        if is_last() and step == 1:
            with torch.no_grad():
                model.get_parameter("unused").mul_(0.95)

    train(model, wrapped(model), decay)


def gradient_changed_on_one_rank() -> None:
    model = net()
    optimizer = wrapped(model)
    train(model, optimizer, steps=2)
    if is_last():
        optimizer.register_synchronize_post_hook(lambda _: model[0].bias.grad.mul_(0.5))
    train(model, optimizer)


def parameter_replaced() -> None:
    model = net()
    optimizer = wrapped(model)

    def replace(step: int) -> None:
        if step == 0:
            model[2].bias = nn.Parameter(torch.full((2,), float(hvd.rank())), requires_grad=False)
            optimizer.param_groups[0]["params"][3] = model[2].bias
            hvd.broadcast_parameters([model[0].weight.data], 0)

    train(model, optimizer, replace)


def frozen_without_broadcast() -> None:
    model = net()
    model[0].requires_grad_(False).weight.fill_(hvd.rank())
    optimizer = wrapped(model, broadcast=False)
    hvd.broadcast_parameters([parameter for parameter in model.parameters() if parameter.requires_grad], 0)
    train(model, optimizer)


def frozen_where_broadcast_weights_were() -> None:
    memory = torch.zeros(12).numpy()
    hvd.broadcast_parameters([torch.from_numpy(memory)], 0)
    model = net()
    model[0].weight = nn.Parameter(torch.from_numpy(memory).view(3, 4), requires_grad=False)
    model[0].weight.fill_(hvd.rank())
    optimizer = wrapped(model, broadcast=False)
    hvd.broadcast_parameters([parameter for parameter in model.parameters() if parameter.requires_grad], 0)
    train(model, optimizer)


def parameters_in_another_order() -> None:
    model = net()
    parameters = list(model.parameters())
    if is_last():
        parameters.reverse()

    def drift(step: int) -> None:
        if is_last() and step == 1:
            with torch.no_grad():
                model[2].weight[1, 2] += 1e-6

    train(model, wrapped(model, torch.optim.SGD(parameters, 0.1)), drift)


def members_differ() -> None:
    members = hvd.add_process_set([0, hvd.size() - 1])
    model = net()
    optimizer = wrapped(model, process_set=members)

    def drift(step: int) -> None:
        if is_last() and step == 1:
            with torch.no_grad():
                model[2].weight[1, 2] += 1e-6

    if members.included():
        train(model, optimizer, drift)
    hvd.remove_process_set(members)


DIFFERENT: list[tuple[Callable[[], None], tuple[str, ...]]] = [
    (
        forgotten_broadcast,
        ("after step 1", "in 4 of 4 tensors: 0.bias, 0.weight", "no rank has called"),
    ),
    (wrapper_thrown_away, ("is not the wrapped one", "of group 0")),
    (unused_parameter_moved, ("rank {last} has other", "in 1 of 5 tensors: unused.", "equal after step 1")),
    (gradient_changed_on_one_rank, ("rank {last} has other", "0.bias", "a gradient was changed while")),
    (parameter_replaced, ("in 1 of 4 tensors: parameter 3 of group 0",)),
    (frozen_without_broadcast, ("in 1 of 4 tensors: 0.weight", "not with these tensors")),
    (frozen_where_broadcast_weights_were, ("in 1 of 4 tensors: 0.weight", "not with these tensors")),
    (parameters_in_another_order, ("in 1 of 4 tensors: 2.weight", "learning rate")),
    (members_differ, ("rank {last} has other weights than rank 0, in 1 of 4 tensors: 2.weight",)),
]
for case, words in DIFFERENT:
    CASES.add_as(case.__name__, functools.partial(is_named, case, *words))


@CASES.add
def an_error_on_every_rank() -> None:
    if hvd.size() not in (2, 3):
        return
    with setting("error"):
        model = net(hvd.rank())
        with pytest.raises(ReplicasDifferError) as caught:
            train(model, wrapped(model, broadcast=False))
    assert caught.value.tensors == ("0.bias", "0.weight", "2.bias", "2.weight")
    everybody = hvd.allgather_object(str(caught.value))
    assert len(set(everybody)) == 1


@CASES.add
def nobody_looks_where_it_is_off() -> None:
    if hvd.size() not in (2, 3):
        return
    with setting("off"), listening() as lines:
        model = net(hvd.rank())
        optimizer = wrapped(model, broadcast=False)
        train(model, optimizer)
    assert lines == []
    assert optimizer._replicas._equal_after == 0


@CASES.add
def a_step_of_the_original_explains_the_error_that_follows() -> None:
    if hvd.size() not in (2, 3):
        return
    model = net()
    original = torch.optim.SGD(model.parameters(), 0.1)
    kept = hvd.DistributedOptimizer(original)
    model(own_data(0)).sum().backward()
    original.step()
    with pytest.raises(AssertionError, match=r"call step\(\) of what hvd.DistributedOptimizer"):
        model(own_data(1)).sum().backward()
    kept.synchronize()
    for parameter in model.parameters():
        parameter.grad = None


# -- what only looks like it --------------------------------------------------------------------------------


def is_passed_over(case: Callable[[], Any]) -> None:
    """Nobody says anything, although the replicas of each optimizer that ``case`` returns were compared."""
    if hvd.size() not in (2, 3):
        return
    with listening() as lines:
        optimizers = case()
    for optimizer in optimizers:
        settle(optimizer._replicas)
        assert optimizer._replicas._equal_after > 0, "never compared"
    assert lines == [], lines


def quiet(case: Callable[[], Any]) -> Callable[[], Any]:
    CASES.add_as(f"quiet_{case.__name__}", functools.partial(is_passed_over, case))
    return case


def trained(model: nn.Module, optimizer: Any = None, **options: Any) -> list[Any]:
    made = wrapped(model, optimizer, **options)
    train(model, made)
    return [made]


@quiet
def tied_weights() -> list[Any]:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return trained(model)


@quiet
def dropout_and_normalised_batches() -> list[Any]:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 1))
    torch.manual_seed(hvd.rank())
    made = trained(model)
    assert not torch.equal(model[1].running_mean, hvd.broadcast(model[1].running_mean, 0)) or not hvd.rank()
    return made


@quiet
def averaged_copies() -> list[Any]:
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = wrapped(model)

    def evaluate_with_the_average(_: int) -> None:
        average.update_parameters(model)
        weights = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.module.state_dict())
        model(own_data(0))
        model.load_state_dict(weights)

    train(model, optimizer, evaluate_with_the_average)
    return [optimizer]


@quiet
def own_shard_of_a_table() -> list[Any]:
    table = nn.Embedding(3 + hvd.rank(), 4)
    own = torch.optim.SGD(table.parameters(), 0.1 + hvd.rank())
    model = net()
    optimizer = wrapped(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        own.zero_grad()
        model(table(torch.arange(3)) + own_data(step)).square().mean().backward()
        optimizer.step()
        own.step()
    return [optimizer]


@quiet
def two_networks_that_take_turns() -> list[Any]:
    first, second = net(), net()
    hvd.broadcast_parameters(second.state_dict(), 0)
    ones = [hvd.DistributedOptimizer(torch.optim.Adam(each.parameters(), 0.01)) for each in (first, second)]
    hvd.broadcast_parameters(first.state_dict(), 0)
    for step in range(2 * STEPS):
        for model, optimizer in zip((first, second), ones, strict=True):
            optimizer.zero_grad()
            (model(own_data(step)).square().mean() + step * model[0].bias.sum()).backward()
            optimizer.step()
    return ones


@quiet
def two_networks_that_step_in_another_order_on_each_rank() -> list[Any]:
    settings = lifecycle.current().config
    before = settings.overlap_gradients
    object.__setattr__(settings, "overlap_gradients", "1")  # all is under way when the first of them waits
    first, second = net(3), net(4)
    ones = [wrapped(first)]
    names = [(f"second.{name}", parameter) for name, parameter in second.named_parameters()]
    ones.append(hvd.DistributedOptimizer(torch.optim.SGD(second.parameters(), 0.1), names))
    for step in range(STEPS):
        for optimizer in ones:
            optimizer.zero_grad()
        (first(own_data(step)) - second(own_data(step))).square().mean().backward()
        for optimizer in reversed(ones) if is_last() else ones:
            optimizer.step()
    object.__setattr__(settings, "overlap_gradients", before)
    return ones


@quiet
def frozen_layers_and_those_that_thaw() -> list[Any]:
    model = net()
    model[0].requires_grad_(False)
    optimizer = wrapped(model)
    train(model, optimizer)
    model[0].requires_grad_(True)
    train(model, optimizer)
    return [optimizer]


@quiet
def code_book_of_own_data() -> list[Any]:
    model = net()
    model.register_parameter("book", nn.Parameter(torch.zeros(3), requires_grad=False))
    optimizer = wrapped(model)

    def follow(step: int) -> None:
        model.get_parameter("book").lerp_(own_data(step)[:, 0], 0.1)

    train(model, optimizer, follow)
    return [optimizer]


@quiet
def adapters_of_frozen_weights() -> list[Any]:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = net()[0].requires_grad_(False)
            self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(3, 2))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.base(inputs) + inputs @ self.down.t() @ self.up.t()
            return output

    model = Adapted()
    optimizer = torch.optim.AdamW([model.down, model.up], 0.1, weight_decay=0.1)
    return trained(model, optimizer)


@quiet
def half_weights_with_master_copies() -> list[Any]:
    model = net()
    hvd.broadcast_parameters(model.state_dict(), 0)
    masters = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
    halves = copy.deepcopy(model).bfloat16()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(masters, 0.1))
    for step in range(STEPS):
        halves.zero_grad()
        halves(own_data(step).bfloat16()).square().mean().backward()
        for master, half in zip(masters, halves.parameters(), strict=True):
            assert half.grad is not None
            master.grad = half.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, half in zip(masters, halves.parameters(), strict=True):
                half.copy_(master)
    return [optimizer]


def steps_with_a_closure(model: torch.nn.Module, optimizer: Any) -> list[Any]:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = model(own_data(0)).square().mean()
        value.backward()
        return value

    for _ in range(STEPS):
        optimizer.step(loss)
    return [optimizer]


@quiet
def closures() -> list[Any]:
    model = net()
    return steps_with_a_closure(model, wrapped(model, torch.optim.LBFGS(model.parameters(), max_iter=3)))


class Ascending(torch.optim.SGD):
    """Goes up the gradient of this rank, takes the gradient there, and steps from where it was: SAM, in the
    form in which each rank has its own way up."""

    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p.add_(0.1 * (hvd.rank() + 1))
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p.copy_(old)
        super().step()
        return loss


@quiet
def own_ways_up() -> list[Any]:
    model = net()
    return steps_with_a_closure(model, wrapped(model, Ascending(model.parameters(), 0.1)))


@quiet
def steps_that_a_scaler_skips() -> list[Any]:
    model = net()
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        factor = float("inf") if step in (1, 2) and is_last() else 1.0
        scaler.scale(model(own_data(step)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    return [optimizer]


@quiet
def data_that_end_earlier_on_some_ranks() -> list[Any]:
    model = net()
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(4):
        train(model, optimizer, steps=3 + 2 * hvd.rank())
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), hvd.size() - 1)
    return [optimizer]


@quiet
def several_passes_and_clipping() -> list[Any]:
    model = net()
    optimizer = wrapped(model, backward_passes_per_step=2, gradient_predivide_factor=2.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for half in range(2):
            model(own_data(2 * step + half)).square().mean().backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
    return [optimizer]


@quiet
def combined_steps() -> list[Any]:
    return trained(net(), op=hvd.Adasum) if hvd.size() == 2 else []


@quiet
def other_strides_nothing_and_no_numbers() -> list[Any]:
    model: Any = nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten())
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 3)))
    model.register_parameter("number", nn.Parameter(torch.tensor(float("nan"))))
    if is_last():
        model.to(memory_format=torch.channels_last)
    optimizer = wrapped(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(own_data(step)[:, :3].reshape(1, 3, 3, 1).expand(1, 3, 3, 3)).mean().backward()
        optimizer.step()
    return [optimizer]


@quiet
def an_optimizer_that_is_made_again() -> list[Any]:
    model = net()
    train(model, wrapped(model))
    return trained(model)


@quiet
def training_of_the_original_after_that_of_all() -> list[Any]:
    model = net()
    original = torch.optim.SGD(model.parameters(), 0.1)
    made = trained(model, original)
    for step in range(STEPS):
        original.zero_grad()
        model(own_data(step)).square().mean().backward()
        made[0].synchronize()
        original.step()
    return made


@quiet
def a_world_of_its_own_after_another() -> list[Any]:
    model = net()
    optimizer = wrapped(model)
    train(model, optimizer)
    hvd.shutdown()
    hvd.init()
    train(model, optimizer)
    return [optimizer]
