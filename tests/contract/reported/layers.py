"""Reports about batch normalisation over all ranks, and what wraps layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contract.world import Cases
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd

CASES = Cases()


@CASES.add
def a_layer_that_stands_in_two_places_is_converted_in_both() -> None:
    """PyTorch: a layer under two names in one module was converted under the first only."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.BatchNorm1d(3)
            self.second = self.first
            self.others = torch.nn.ModuleList([self.first, torch.nn.Sequential(self.first)])

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.second(given)
            return result

    network: Any = hvd.SyncBatchNorm.convert_sync_batchnorm(Twice())
    places = (network.first, network.second, network.others[0], network.others[1][0])
    assert all(place is network.first for place in places)
    assert isinstance(network.first, hvd.SyncBatchNorm)
    output = network(torch.full((2, 3), float(hvd.rank())) + torch.tensor([[0.0], [1.0]]))
    assert torch.allclose(hvd.allreduce(output.mean(0)), torch.zeros(3), atol=1e-5)


@CASES.add
def hooks_and_attributes_of_a_layer_move_along() -> None:
    """PyTorch: conversion after ``register_forward_hook`` left features that were never seen again."""
    seen: list[torch.Size] = []
    layer = torch.nn.BatchNorm1d(3, momentum=0.3)
    layer.register_forward_hook(lambda module, given, output: seen.append(output.shape))
    layer.name_in_the_paper = "b1"  # type: ignore[assignment]
    running = layer.running_mean
    network: Any = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(layer)).eval()
    network(torch.randn(4, 3))
    converted = network[0]
    assert seen == [torch.Size([4, 3])]
    assert converted.name_in_the_paper == "b1"
    assert converted.weight is layer.weight
    assert converted.running_mean is running
    assert converted.momentum == 0.3
    assert layer.training
    assert not converted.training, "the original shares its settings with the copy"


@CASES.add
def a_layer_that_computes_more_is_not_stripped_of_it() -> None:
    """timm: normalisation with an activation inside came out of the conversion without the activation."""

    class WithActivation(torch.nn.BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return torch.relu(super().forward(input))

    network = torch.nn.Sequential(torch.nn.BatchNorm1d(3), WithActivation(3))
    with pytest.raises(ValueError, match=r"WithActivation has a forward\(\) of its own"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(network)
    assert type(network[0]) is torch.nn.BatchNorm1d, "something was converted before the refusal"

    patched: Any = torch.nn.BatchNorm1d(3)
    patched.forward = torch.relu
    with pytest.raises(ValueError, match=r"forward\(\) of its own"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(patched)


@CASES.add
def without_running_statistics() -> None:
    """PyTorch: ``track_running_stats=False`` failed on statistics that are None, in evaluation too."""
    layer: Any = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm2d(3, track_running_stats=False))
    for training in (True, False):
        layer.train(training)
        output = layer(torch.randn(2, 3, 2, 2) + hvd.rank())
        assert torch.allclose(hvd.allreduce(output.mean((0, 2, 3))), torch.zeros(3), atol=1e-5)


@CASES.add
def ranks_with_inputs_of_different_types() -> None:
    """PyTorch: statistics of a rank were in the type of its input, and ranks disagreed on the bytes to
    send."""
    torch.manual_seed(hvd.rank())
    dtype = torch.bfloat16 if hvd.rank() == 0 else torch.float32
    given = torch.randn(4, 3).to(dtype).requires_grad_()
    output = hvd.SyncBatchNorm(3)(given)
    output.sum().backward()
    assert output.dtype == dtype
    assert given.grad is not None
    assert given.grad.dtype == dtype
    assert torch.allclose(hvd.allreduce(output.detach().float().mean(0)), torch.zeros(3), atol=2e-2)


@CASES.add
def collectives_in_the_forward_pass_are_recomputed() -> None:
    """PyTorch: collectives within checkpointed or offloaded parts of a model hung in the backward pass."""

    def gradients(way: str) -> torch.Tensor:
        torch.manual_seed(3)
        network = torch.nn.Sequential(torch.nn.Linear(3, 3), hvd.SyncBatchNorm(3), torch.nn.Tanh())
        given = (torch.arange(12.0).reshape(4, 3) * (hvd.rank() + 1)).requires_grad_()

        def forward(x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = hvd.allreduce(network(x), op=hvd.Sum)
            return total.square()

        if way == "offloaded":
            with torch.autograd.graph.save_on_cpu():
                output = forward(given)
        elif way == "plain":
            output = forward(given)
        else:
            output = checkpoint(forward, given, use_reentrant=way == "reentrant")
        output.sum().backward()
        return torch.cat([p.grad.flatten() for p in (given, *network.parameters()) if p.grad is not None])

    expected = gradients("plain")
    for way in ("offloaded", "reentrant", "not reentrant"):
        assert torch.equal(gradients(way), expected), way
