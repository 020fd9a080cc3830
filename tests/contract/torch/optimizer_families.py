"""For every optimizer: training on all ranks, each with its share of the batch, is training of one process on
the whole batch, and the weights of all ranks are the same to the last bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from tests.contract.torch.state import FAMILIES, OPTIONS, assert_equal_everywhere
from tests.contract.world import Cases
from tests.unit.torch.foreign_optimizers import FOREIGN

import horovod.torch as hvd

CASES = Cases()
STEPS = 4
SHARE = 3  # samples of each rank in each step

Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


def network(bias: bool = True) -> torch.nn.Sequential:
    """The same weights on every rank; in float64, so that optimizers that divide by small numbers do not
    blow up the rounding of the sum over ranks."""
    torch.manual_seed(11)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3, bias=bias), torch.nn.Tanh(), torch.nn.Linear(3, 2, bias=bias)
    ).double()


def batch(step: int) -> torch.Tensor:
    """Of all ranks together."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(SHARE * hvd.size(), 4, generator=generator, dtype=torch.float64)


def share(step: int) -> torch.Tensor:
    return batch(step)[hvd.rank() * SHARE :][:SHARE]


def loss_of(net: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (net(inputs) - 1.0).pow(2).mean()
    return loss


def assert_trained_alike(net: torch.nn.Module, alone: torch.nn.Module) -> None:
    for mine, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert_equal_everywhere(mine)
        assert torch.allclose(mine, expected, rtol=1e-7, atol=1e-9), (mine, expected)


def train(make: Make, bias: bool = True, **options: Any) -> None:
    net, alone = network(bias), network(bias)
    reference = make(alone)
    optimizer = hvd.DistributedOptimizer(make(net), named_parameters=net.named_parameters(), **options)
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, share(step)).backward()
        optimizer.step()
        reference.zero_grad()
        loss_of(alone, batch(step)).backward()
        reference.step()
    assert_trained_alike(net, alone)


def plain(name: str, options: dict[str, Any]) -> None:
    family: Any = FAMILIES[name]
    train(lambda net: family(net.parameters(), **options), bias=name != "Muon")


def foreign(make: Callable[[Any], Any]) -> None:
    train(lambda net: make(net.parameters()))


for name in FAMILIES:
    for number, options in enumerate(OPTIONS[name]):
        CASES.add_as(f"{name}_{number}", functools.partial(plain, name, options))

for name, make in FOREIGN.items():
    CASES.add_as(f"foreign_{name.replace(' ', '_')}", functools.partial(foreign, make))

VARIANTS: dict[str, list[str]] = {
    "foreach": ["SGD", "Adam", "Rprop"],
    "fused": ["SGD", "Adam", "AdamW", "Adagrad"],
    "maximize": ["SGD", "AdamW", "RMSprop"],
}
for variant, names in VARIANTS.items():
    for name in names:
        CASES.add_as(f"{name}_{variant}", functools.partial(plain, name, {**OPTIONS[name][0], variant: True}))


@CASES.add
def groups_with_options_of_their_own() -> None:
    def make(net: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [
                {"params": [net[0].weight, net[2].weight], "weight_decay": 0.5},
                {"params": [net[0].bias, net[2].bias], "lr": 0.1, "betas": (0.5, 0.6), "amsgrad": True},
            ],
            lr=0.01,
        )

    train(make)


@CASES.add
def rows_of_an_embedding_with_sparse_adam() -> None:
    for as_dense in (False, True):
        torch.manual_seed(3)
        net, alone = (torch.nn.Embedding(12, 2, sparse=True).double() for _ in range(2))
        alone.load_state_dict(net.state_dict())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(net.parameters()), lr=0.1),
            named_parameters=net.named_parameters(),
            sparse_as_dense=as_dense,
        )
        reference = torch.optim.SparseAdam(list(alone.parameters()), lr=0.1)
        hvd.broadcast_optimizer_state(optimizer, 0)
        for step in range(STEPS):
            rows = [torch.tensor([rank, rank + 2, step]) for rank in range(hvd.size())]
            optimizer.zero_grad()
            net(rows[hvd.rank()]).pow(2).mean().backward()
            optimizer.step()
            reference.zero_grad()
            alone(torch.cat(rows)).pow(2).mean().backward()
            reference.step()
        assert_trained_alike(net, alone)


def lbfgs(options: dict[str, Any]) -> None:
    """Ranks see the loss and the gradients of all, so they search along the same lines."""
    net, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(net.parameters(), **options), named_parameters=net.named_parameters()
    )
    reference = torch.optim.LBFGS(alone.parameters(), **options)
    calls = [0, 0]

    def closure() -> torch.Tensor:
        calls[0] += 1
        optimizer.zero_grad()
        loss = loss_of(net, share(0))
        loss.backward()
        return loss

    def reference_closure() -> torch.Tensor:
        calls[1] += 1
        reference.zero_grad()
        loss = loss_of(alone, batch(0))
        loss.backward()
        return loss

    for _ in range(2):
        got: Any = optimizer.step(closure)
        expected: Any = reference.step(reference_closure)
        assert torch.allclose(got, expected)
    assert calls[0] == calls[1] > 4
    assert_trained_alike(net, alone)


CASES.add_as("LBFGS", functools.partial(lbfgs, {"lr": 0.1, "max_iter": 4}))
CASES.add_as(
    "LBFGS_strong_wolfe", functools.partial(lbfgs, {"max_iter": 4, "line_search_fn": "strong_wolfe"})
)


def closures(name: str) -> None:
    """Optimizers that call a closure once."""
    family: Any = FAMILIES[name]
    bias = name != "Muon"
    net, alone = network(bias), network(bias)
    optimizer = hvd.DistributedOptimizer(family(net.parameters()), named_parameters=net.named_parameters())
    reference = family(alone.parameters())
    for step in range(2):

        def closure(model: Any, of: Any, inputs: torch.Tensor) -> torch.Tensor:
            of.zero_grad()
            loss = loss_of(model, inputs)
            loss.backward()
            return loss

        got: Any = optimizer.step(functools.partial(closure, net, optimizer, share(step)))
        expected = reference.step(functools.partial(closure, alone, reference, batch(step)))
        assert torch.allclose(got, expected)
    assert_trained_alike(net, alone)


for name in FAMILIES:
    CASES.add_as(f"closure_of_{name}", functools.partial(closures, name))
