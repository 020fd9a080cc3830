"""Reducescatter of arrays in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.arrays.compression import Compression
from horovod.arrays.frontend import collectives
from horovod.collectives.ops import Average
from horovod.gradients.compression import checked_compressor, reduce_compressed
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce ``tensor`` over all ranks and keep this rank's share of the rows.

    Args:
        tensor: shape ``(d, *rest)``, contiguous, same shape and dtype on every rank: dtypes of
            :func:`allreduce`.
        name: identity across ranks; by default derived from the order of calls.
        compression: around the reduction.
        op: ``Average`` or ``Sum``.
        process_set: ranks that take part.
        prescale_factor, postscale_factor: ``postscale * reduce(prescale * tensor)``.

    Returns:
        Shape ``(d // n + (r < d % n), *rest)`` on set rank r of n: consecutive rows, after those of lower
        ranks.

    Raises:
        TypeError: ``process_set`` is not registered.
        ValueError: dtype, layout, no dimensions, ``name`` in flight, or this rank is not in the set.
        HorovodInternalError: another ``op``; ranks disagree; a rank was lost.
    """
    small, context = checked_compressor(compression).compress(tensor)
    how = op, prescale_factor, postscale_factor, process_set
    return compression.decompress(collectives.run_reducescatter(small, name, *how), context)


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """:func:`reducescatter` without waiting and compression; returns a handle."""
    return collectives.reducescatter(tensor, name, op, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """:func:`reducescatter` of all ``tensors`` as one operation; ``name`` is the base of the members'
    names."""
    how = op, prescale_factor, postscale_factor, process_set

    def reduce(small: list[Any]) -> tuple[Any, ...]:
        return collectives.run_grouped_reducescatter(small, name, *how)

    return reduce_compressed(compression, tensors, reduce)


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """:func:`grouped_reducescatter` without waiting and compression; one handle for all, whose result is a
    tuple."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.grouped_reducescatter(tensors, name, *how)
