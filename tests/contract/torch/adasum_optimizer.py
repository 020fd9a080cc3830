"""`DistributedOptimizer(op=Adasum)` against a whole step in NumPy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.torch.state import assert_equal_everywhere
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
LR, MOMENTUM, DECAY = 0.1, 0.5, 0.01
ROWS = 6


def adasum(changes: list[np.ndarray]) -> np.ndarray:
    """Pairs at distances 1, 2, 4 …; source: Maleki et al., MLSys 2021, section 3."""
    while len(changes) > 1:
        changes = [_pair(a, b) for a, b in zip(changes[::2], changes[1::2], strict=True)]
    return changes[0]


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    both, norm_a, norm_b = float((a * b).sum()), float((a * a).sum()), float((b * b).sum())
    tiny = np.sqrt(np.finfo(np.float64).tiny)
    of_a = 1.0 if norm_a < tiny else 1.0 - both / (2 * norm_a)
    of_b = 1.0 if norm_b < tiny else 1.0 - both / (2 * norm_b)
    return of_a * a + of_b * b


def data(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets."""
    values = np.random.default_rng([rank, step]).standard_normal((ROWS, 4))
    return values[:, :3], values[:, 3:]


def power_of_two() -> bool:
    return hvd.size() & (hvd.size() - 1) == 0


def train_in_numpy(steps: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Linear regression by SGD with momentum and weight decay; each rank keeps a momentum of its own."""
    weight, bias = start()
    momenta: list[list[np.ndarray | None]] = [[None, None] for _ in range(hvd.size())]
    for step in range(steps):
        changes: list[list[np.ndarray]] = []
        for rank in range(hvd.size()):
            sums = [np.zeros_like(weight), np.zeros_like(bias)]
            for number in range(passes):
                inputs, targets = data(rank, step * passes + number)
                error = 2 * (inputs @ weight.T + bias - targets) / ROWS
                sums[0] += error.T @ inputs
                sums[1] += error.sum(0)
            mine = []
            for which, value in enumerate((weight, bias)):
                gradient = sums[which] + DECAY * value
                old = momenta[rank][which]
                new = gradient if old is None else MOMENTUM * old + gradient
                momenta[rank][which] = new
                mine.append(-LR * new)
            changes.append(mine)
        weight = weight + adasum([change[0] for change in changes])
        bias = bias + adasum([change[1] for change in changes])
    return weight, bias


def start() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    return generator.standard_normal((1, 3)), generator.standard_normal(1)


def model() -> torch.nn.Linear:
    net = torch.nn.Linear(3, 1).double()
    for parameter, value in zip(net.parameters(), start(), strict=True):
        parameter.data.copy_(torch.from_numpy(value))
    return net


def wrap(net: torch.nn.Module, **options: Any) -> Any:
    plain = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    return hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters(), op=hvd.Adasum, **options)


def backward(net: torch.nn.Module, number: int) -> torch.Tensor:
    inputs, targets = (torch.from_numpy(value) for value in data(hvd.rank(), number))
    loss: torch.Tensor = (net(inputs) - targets).pow(2).mean()
    loss.backward()
    return loss


def numbers_case(passes: int, with_closure: bool) -> None:
    if not power_of_two():
        return
    net = model()
    optimizer = wrap(net, backward_passes_per_step=passes)
    for step in range(3):
        optimizer.zero_grad()
        if with_closure:
            optimizer.step(functools.partial(backward, net, step))
            continue
        for number in range(step * passes, (step + 1) * passes):
            backward(net, number)
        optimizer.step()
    for parameter, expected in zip(net.parameters(), train_in_numpy(3, passes), strict=True):
        assert_equal_everywhere(parameter)
        assert torch.allclose(parameter, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)


CASES.add_as("steps_are_combined", functools.partial(numbers_case, 1, False))
CASES.add_as("steps_of_two_passes", functools.partial(numbers_case, 2, False))
CASES.add_as("steps_with_a_closure", functools.partial(numbers_case, 1, True))


@CASES.add
def ranks_whose_number_is_no_power_of_two() -> None:
    if power_of_two():
        return
    with pytest.raises(NotImplementedError, match=f"power of two, not {hvd.size()}"):
        wrap(model())


@CASES.add
def different_parts_of_a_model_and_half_precision_on_the_way() -> None:
    if not power_of_two():
        return
    torch.manual_seed(2)
    heads = torch.nn.ModuleList([torch.nn.Linear(4, 2) for _ in range(2)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(heads.parameters(), lr=0.01),
        named_parameters=heads.named_parameters(),
        op=hvd.Adasum,
        compression=hvd.Compression.fp16,
    )
    for _ in range(2):
        optimizer.zero_grad()
        heads[0 if hvd.rank() == 0 else 1](torch.ones(3, 4)).sum().backward()
        optimizer.step()
    for parameter in heads.parameters():
        assert_equal_everywhere(parameter)
