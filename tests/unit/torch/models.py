"""Small models and how tests of the optimizer use them."""

from __future__ import annotations

from typing import Any

import torch

import horovod.torch as hvd

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


def two_layers() -> Any:
    """The same weights in every call."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


def wrap(model: torch.nn.Module, *, lr: float = 0.5, **options: Any) -> Any:
    options.setdefault("named_parameters", model.named_parameters())
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=lr), **options)


def backward(model: torch.nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(4, 3)).sum()
    loss.backward()
    return loss


def grads(model: torch.nn.Module) -> list[torch.Tensor]:
    """Those that there are: at least one, or what is said about all of them says nothing."""
    there = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert there, "no parameter has a gradient"
    return there
