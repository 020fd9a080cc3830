"""Allgather of PyTorch tensors in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import CollectiveFunction, collectives, differentiable, run_noted, tracked
from horovod.torch.collectives.allreduce import allreduce, grouped_allreduce

__all__ = ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate every rank's ``tensor`` along the first dimension, in rank order; differentiable: the
    gradient is the average of the upstream ones, of which each rank keeps its own rows.

    Args:
        tensor: at least one dimension, contiguous. The first dimension may differ between ranks, also be 0.

    Raises:
        IndexError: ``tensor`` has no dimensions.
    """
    _need_rows(tensor)
    if not tracked(tensor):
        return collectives.run_allgather(tensor, name, process_set)
    rows = len(tensor)

    def gradient(upstream: torch.Tensor) -> torch.Tensor:
        (before,) = _rows_before([rows], process_set)
        return allreduce(upstream, process_set=process_set).narrow(0, before, rows)

    return differentiable(lambda given: allgather(given, name, process_set), gradient, tensor)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`allgather` without waiting and autograd; returns a handle."""
    return collectives.allgather(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """:func:`allgather` of all ``tensors`` as one operation; ``name`` is the base of the members' names."""
    for tensor in tensors:
        _need_rows(tensor)
    if not any(map(tracked, tensors)):
        return collectives.run_grouped_allgather(tensors, name, process_set)
    rows = [len(tensor) for tensor in tensors if tensor.is_floating_point()]

    def gradient(*upstreams: torch.Tensor) -> list[torch.Tensor]:
        averages = grouped_allreduce(upstreams, process_set=process_set)
        before = _rows_before(rows, process_set)
        return [
            average.narrow(0, first, count)
            for average, first, count in zip(averages, before, rows, strict=True)
        ]

    return differentiable(lambda *given: grouped_allgather(given, name, process_set), gradient, *tensors)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`grouped_allgather` without waiting and autograd; one handle for all."""
    return collectives.grouped_allgather(tensors, name, process_set)


class HorovodAllgather(CollectiveFunction):
    """See ``horovod.torch.allgather``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        return run_noted(ctx, locals(), lambda given: allgather(given, name, process_set), tensor)


class HorovodGroupedAllgather(CollectiveFunction):
    """See ``horovod.torch.grouped_allgather``."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        return run_noted(ctx, locals(), lambda *given: grouped_allgather(given, name, process_set), *tensors)


def _need_rows(tensor: torch.Tensor) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        raise IndexError("allgather concatenates along the first dimension; the tensor has none.")


def _rows_before(rows: list[int], process_set: ProcessSet) -> list[int]:
    """For each gathered tensor, how many rows of lower ranks come before this rank's."""
    everyone = allgather(torch.tensor([rows], dtype=torch.int64, device="cpu"), process_set=process_set)
    rank = process_set.rank()
    assert rank is not None  # an operation on the set has just succeeded
    before: list[int] = everyone[:rank].sum(dim=0).tolist()
    return before
