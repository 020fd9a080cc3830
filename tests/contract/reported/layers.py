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
