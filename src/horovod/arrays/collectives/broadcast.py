"""Broadcast of arrays in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from typing import Any

from horovod.arrays.frontend import collectives, new_output, writable
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's ``tensor`` on every rank, and leave ``tensor`` as it is.

    Args:
        tensor: same shape and dtype on every rank, contiguous.
        root_rank: global rank of the sender.
        name: identity across ranks; by default derived from the order of calls.
        process_set: ranks that take part.

    Raises:
        ValueError: ``root_rank`` is not a rank of the set.
        HorovodInternalError: ranks disagree; a rank was lost.
    """
    return collectives.run_broadcast(tensor, new_output(tensor), root_rank, name, process_set)


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast` without waiting; returns a handle."""
    return collectives.broadcast(tensor, new_output(tensor), root_rank, name, process_set)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """:func:`broadcast` into ``tensor`` itself; returns ``tensor``.

    Raises:
        ValueError: ``tensor`` is read-only.
    """
    return collectives.run_broadcast(writable(tensor), tensor, root_rank, name, process_set)


def broadcast_async_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast_` without waiting; returns a handle."""
    return collectives.broadcast(writable(tensor), tensor, root_rank, name, process_set)
