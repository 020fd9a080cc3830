"""Reduce of arrays to one rank, in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.arrays.frontend import collectives, new_output, new_outputs, writable
from horovod.collectives.ops import Average
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "grouped_reduce",
    "grouped_reduce_",
    "grouped_reduce_async",
    "grouped_reduce_async_",
    "reduce",
    "reduce_",
    "reduce_async",
    "reduce_async_",
]


def reduce(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the reduction of all ranks' ``tensor`` on the root, and elsewhere a copy of ``tensor``.

    Args:
        tensor: contiguous, same shape and dtype on every rank: dtypes of :func:`allreduce`.
        root_rank: global rank of the receiver.
        name: identity across ranks; by default derived from the order of calls.
        op: ``Average``, ``Sum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor, postscale_factor: ``postscale * reduce(prescale * tensor)`` on the root.
        process_set: ranks that take part.

    Raises:
        ValueError: ``root_rank`` is not a rank of the set; dtype, layout, ``name`` in flight, or this rank is
            not in the set.
        TypeError: ``process_set`` is not registered.
        HorovodInternalError: ``op`` is Adasum; ranks disagree; a rank was lost.
    """
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.run_reduce(tensor, new_output(tensor), root_rank, name, *how)


def reduce_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`reduce` without waiting; returns a handle."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.reduce(tensor, new_output(tensor), root_rank, name, *how)


def reduce_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """:func:`reduce` into the root's ``tensor`` itself, which leaves the others' as they are; returns
    ``tensor``."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.run_reduce(writable(tensor), tensor, root_rank, name, *how)


def reduce_async_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`reduce_` without waiting; returns a handle."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.reduce(writable(tensor), tensor, root_rank, name, *how)


def grouped_reduce(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, ...]:
    """:func:`reduce` of all ``tensors`` as one operation; ``name`` is the base of the members' names."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.run_grouped_reduce(tensors, new_outputs(tensors), root_rank, name, *how)


def grouped_reduce_async(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_reduce` without waiting; one handle for all, whose result is a tuple."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.grouped_reduce(tensors, new_outputs(tensors), root_rank, name, *how)


def grouped_reduce_(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, ...]:
    """:func:`grouped_reduce` into ``tensors`` themselves; returns them as a tuple."""
    how = op, prescale_factor, postscale_factor, process_set
    given = tuple(map(writable, tensors))
    return collectives.run_grouped_reduce(given, given, root_rank, name, *how)


def grouped_reduce_async_(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_reduce_` without waiting; one handle for all."""
    how = op, prescale_factor, postscale_factor, process_set
    given = tuple(map(writable, tensors))
    return collectives.grouped_reduce(given, given, root_rank, name, *how)
