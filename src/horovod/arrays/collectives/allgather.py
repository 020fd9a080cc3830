"""Allgather of arrays in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.arrays.frontend import collectives
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate every rank's ``tensor`` along the first dimension, in rank order.

    Args:
        tensor: at least one dimension, contiguous. The first dimension may differ between ranks, also be 0.
        name: identity across ranks; by default derived from the order of calls.
        process_set: ranks that take part.

    Raises:
        HorovodInternalError: ``tensor`` has no dimensions; ranks disagree; a rank was lost.
    """
    return collectives.run_allgather(tensor, name, process_set)


def allgather_async(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`allgather` without waiting; returns a handle."""
    return collectives.allgather(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Any, ...]:
    """:func:`allgather` of all ``tensors`` as one operation; ``name`` is the base of the members' names."""
    return collectives.run_grouped_allgather(tensors, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`grouped_allgather` without waiting; one handle for all, whose result is a tuple."""
    return collectives.grouped_allgather(tensors, name, process_set)
