"""Broadcast of PyTorch tensors in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from typing import Any

import torch

from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import (
    CollectiveFunction,
    changed,
    collectives,
    differentiable,
    new_output,
    run_noted,
    tracked,
)
from horovod.torch.collectives.allreduce import allreduce

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the root's ``tensor`` on every rank, and leave ``tensor`` as it is; differentiable: the
    gradient is the average of the upstream ones on the root, zeros elsewhere.

    Args:
        tensor: same shape and dtype on every rank, contiguous.
        root_rank: global rank of the sender.

    Raises:
        ValueError: ``root_rank`` is not a rank of the set.
    """
    if not tracked(tensor):
        return collectives.run_broadcast(tensor, new_output(tensor), root_rank, name, process_set)

    def gradient(upstream: torch.Tensor) -> torch.Tensor:
        average = allreduce(upstream, process_set=process_set)
        am_root = lifecycle.current().topology.rank == root_rank
        return average if am_root else torch.zeros_like(average)

    return differentiable(lambda given: broadcast(given, root_rank, name, process_set), gradient, tensor)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast` without waiting and autograd; returns a handle."""
    return collectives.broadcast(tensor, new_output(tensor), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`broadcast` into ``tensor`` itself; returns ``tensor``. To autograd it is a change in place: a
    backward pass that needs the old values raises."""
    collectives.run_broadcast(tensor, tensor, root_rank, name, process_set)
    if tensor.requires_grad:
        changed([tensor])
    return tensor


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast_` without waiting; returns a handle."""
    handle = collectives.broadcast(tensor, tensor, root_rank, name, process_set)
    if tensor.requires_grad:
        changed([tensor])
    return handle


class HorovodBroadcast(CollectiveFunction):
    """See ``horovod.torch.broadcast``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        return run_noted(ctx, locals(), lambda given: broadcast(given, root_rank, name, process_set), tensor)
