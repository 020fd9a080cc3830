"""Allreduce of arrays in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.arrays.compression import Compression
from horovod.arrays.frontend import collectives, new_output, new_outputs, writable
from horovod.collectives.ops import reduce_op
from horovod.gradients.compression import checked_compressor, reduce_compressed
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``tensor`` over all ranks and return the result, an array of the same library.

    Args:
        tensor: contiguous, same shape and dtype on every rank: bool, (u)int8, (u)int16, int32, int64,
            float16, bfloat16 (of ``ml_dtypes``), float32 or float64.
        average: deprecated; ``True`` means ``op=Average``, ``False`` means ``op=Sum``.
        name: identity across ranks; by default derived from the order of calls.
        compression: around the reduction.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum`` (floating types).
        prescale_factor, postscale_factor: ``postscale * reduce(prescale * tensor)``.
        process_set: ranks that take part.

    Raises:
        ValueError: dtype, layout, ``name`` in flight, both ``average`` and ``op``, no reduction; this rank is
            not in the set; not initialised; the library of ``tensor`` makes no arrays.
        TypeError: ``process_set`` is not registered.
        NotImplementedError: Adasum in a set of its own, or of a number of ranks that is no power of two.
        HorovodInternalError: ranks disagree; a rank was lost.
    """
    op = reduce_op(op, average)
    small, context = checked_compressor(compression).compress(tensor)
    how = op, prescale_factor, postscale_factor, process_set
    return compression.decompress(collectives.run_allreduce(small, new_output(small), name, *how), context)


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`allreduce` without waiting and compression; returns a handle."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    return collectives.allreduce(tensor, new_output(tensor), name, *how)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """:func:`allreduce` into ``tensor`` itself; returns ``tensor``.

    Raises:
        ValueError: ``tensor`` is read-only.
    """
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    return collectives.run_allreduce(writable(tensor), tensor, name, *how)


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`allreduce_` without waiting; returns a handle."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    return collectives.allreduce(writable(tensor), tensor, name, *how)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`allreduce` of all ``tensors`` as one operation; ``name`` is the base of the members' names."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    return reduce_compressed(
        compression,
        tensors,
        lambda small: collectives.run_grouped_allreduce(small, new_outputs(small), name, *how),
    )


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_allreduce` without waiting; one handle for all, whose result is a tuple."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    return collectives.grouped_allreduce(tensors, new_outputs(tensors), name, *how)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, ...]:
    """:func:`grouped_allreduce` into ``tensors`` themselves; returns them as a tuple."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    given = tuple(map(writable, tensors))
    return collectives.run_grouped_allreduce(given, given, name, *how)


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_allreduce_` without waiting; one handle for all."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    given = tuple(map(writable, tensors))
    return collectives.grouped_allreduce(given, given, name, *how)
