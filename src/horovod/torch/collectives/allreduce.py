"""Allreduce of PyTorch tensors in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.collectives.ops import reduce_op
from horovod.gradients.compression import NoneCompressor, checked_compressor, reduce_compressed
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
from horovod.torch.compression import Compression

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
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks and return the result; differentiable: the gradient is the same
    reduction of the upstream one. (For Min, Max and Product that is not a true derivative.)

    Args:
        tensor: contiguous, same shape and dtype on every rank: bool, (u)int8, int32, int64, float16,
            bfloat16, float32 or float64.
        average: deprecated; ``True`` means ``op=Average``, ``False`` means ``op=Sum``.
        name: identity across ranks; by default derived from the order of calls.
        compression: around the reduction, not part of the gradient.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum`` (float16, float32 and
            float64).
        prescale_factor, postscale_factor: ``postscale * reduce(prescale * tensor)``.
        process_set: ranks that take part.

    Raises:
        ValueError: dtype, layout, ``name`` in flight, both ``average`` and ``op``, no reduction; this rank is
            not in the set; not initialised.
        TypeError: ``process_set`` is not registered.
        NotImplementedError: Adasum in a set of its own, or of a number of ranks that is no power of two.
        HorovodInternalError: ranks disagree; a rank was lost.
    """
    op = reduce_op(op, average)
    try:
        small, context = compression.compress(tensor)
    except AttributeError:
        checked_compressor(compression)
        raise
    if tracked(small):
        reduced = _tracked(small, name, op, prescale_factor, postscale_factor, process_set)
    else:
        reduced = collectives.run_allreduce(
            small, new_output(small), name, op, prescale_factor, postscale_factor, process_set
        )
    result: torch.Tensor = compression.decompress(reduced, context)
    return result


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`allreduce` without waiting, compression and autograd; returns a handle."""
    op = reduce_op(op, average)
    out = new_output(tensor)
    return collectives.allreduce(tensor, out, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`allreduce` into ``tensor`` itself, which may be a leaf that requires grad; returns ``tensor``.
    To autograd it is a change in place: a backward pass that needs the old values raises."""
    if average is not None or op.__class__ is not int:
        op = reduce_op(op, average)
    assert op is not None
    collectives.run_allreduce(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)
    if tensor.requires_grad:
        changed([tensor])
    return tensor


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`allreduce_` without waiting; returns a handle."""
    op = reduce_op(op, average)
    handle = collectives.allreduce(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)
    if tensor.requires_grad:
        changed([tensor])
    return handle


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """:func:`allreduce` of all ``tensors`` as one operation; ``name`` is the base of the members' names."""
    how = reduce_op(op, average), prescale_factor, postscale_factor, process_set
    return reduce_compressed(compression, tensors, lambda small: _reduce_group(small, name, *how))


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_allreduce` without waiting; one handle for all, whose result is a tuple."""
    op = reduce_op(op, average)
    outs = [new_output(tensor) for tensor in tensors]
    return collectives.grouped_allreduce(
        tensors, outs, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """:func:`grouped_allreduce` into ``tensors`` themselves; returns them as a tuple."""
    op = reduce_op(op, average)
    results = collectives.run_grouped_allreduce(
        tensors, tensors, name, op, prescale_factor, postscale_factor, process_set
    )
    changed(results)
    return results


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_allreduce_` without waiting; one handle for all."""
    op = reduce_op(op, average)
    handle = collectives.grouped_allreduce(
        tensors, tensors, name, op, prescale_factor, postscale_factor, process_set
    )
    changed(tensors)
    return handle


class HorovodAllreduce(CollectiveFunction):
    """See ``horovod.torch.allreduce``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        return run_noted(
            ctx,
            locals(),
            lambda given: allreduce(
                given, average, name, NoneCompressor, op, prescale_factor, postscale_factor, process_set
            ),
            tensor,
        )


class HorovodGroupedAllreduce(CollectiveFunction):
    """See ``horovod.torch.grouped_allreduce``; returns a tuple."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Any:
        return run_noted(
            ctx,
            locals(),
            lambda *given: grouped_allreduce(
                given, average, name, NoneCompressor, op, prescale_factor, postscale_factor, process_set
            ),
            *tensors,
        )


def _tracked(tensor: torch.Tensor, name: str | None, *how: Any) -> torch.Tensor:
    return differentiable(
        lambda given: collectives.run_allreduce(given, new_output(given), name, *how),
        lambda upstream: allreduce(upstream, None, None, Compression.none, *how),
        tensor,
    )


def _reduce_group(tensors: Sequence[torch.Tensor], name: str | None, *how: Any) -> tuple[torch.Tensor, ...]:
    if any(map(tracked, tensors)):
        return differentiable(
            lambda *given: _reduce_group(given, name, *how),
            lambda *upstreams: _reduce_group(upstreams, None, *how),
            *tensors,
        )
    return collectives.run_grouped_allreduce(tensors, list(map(new_output, tensors)), name, *how)
