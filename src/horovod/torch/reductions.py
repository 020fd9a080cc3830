"""Reductions of ``horovod.torch``: allreduce, sparse allreduce and reducescatter in their forms (see
``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from horovod.collectives.forms import Average, reduce_op
from horovod.errors import InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count
from horovod.torch.autograd import (
    Allreduce,
    GroupedAllreduce,
    GroupedReducescatter,
    Reducescatter,
    apply,
    collectives,
    new_output,
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
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
]

# -- allreduce ----------------------------------------------------------------------------------------------


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
    """Reduce ``tensor`` over all ranks and return the result; differentiable.

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
        ValueError: dtype, layout, ``name`` in flight, both ``average`` and ``op``, or this rank is not in the
            set; with Adasum also: not initialised.
        TypeError: ``process_set`` is not registered.
        NotImplementedError: Adasum in a set of its own, or of a number of ranks that is no power of two.
        HorovodInternalError: not initialised; ranks disagree; a rank was lost.
    """
    op = reduce_op(op, average)
    small, context = compression.compress(tensor)
    if small.requires_grad and torch.is_grad_enabled():
        reduced: torch.Tensor = apply(
            Allreduce, small, name, op, prescale_factor, postscale_factor, process_set
        )
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
    if average is not None or op is None:
        op = reduce_op(op, average)
    collectives.run_allreduce(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)
    if tensor.requires_grad:
        increment_version(tensor)
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
        increment_version(tensor)
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
    op = reduce_op(op, average)
    compressed = [compression.compress(tensor) for tensor in tensors]
    small = [tensor for tensor, _ in compressed]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in small):
        reduced = apply(GroupedAllreduce, name, op, prescale_factor, postscale_factor, process_set, *small)
    else:
        outs = [new_output(tensor) for tensor in small]
        reduced = collectives.run_grouped_allreduce(
            small, outs, name, op, prescale_factor, postscale_factor, process_set
        )
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, compressed, strict=True)
    ]


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
    increment_version([tensor for tensor in results if tensor.requires_grad])
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
    increment_version([tensor for tensor in tensors if tensor.requires_grad])
    return handle


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a COO tensor, as two allgathers ``<name>.indices`` and ``<name>.values``.

    Ranks may have different numbers of entries, also none.

    Returns:
        A function that waits and returns an uncoalesced COO tensor of the same dense size with the entries of
        all ranks; their values divided by the number of members if ``op`` is ``Average`` (integers are
        truncated), else as they are.

    Raises:
        ValueError: not a COO tensor, a dtype that cannot be gathered, or this rank is not in the set.
        HorovodInternalError: not initialised; ranks disagree; a rank was lost.
    """
    if tensor.layout != torch.sparse_coo:
        raise InvalidArgumentError(f"Expected a sparse COO tensor, got layout {tensor.layout}.")
    # Entries are rows of both, so that they can be concatenated. Coalescing first is up to the caller.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().contiguous()
    collectives.frontend.describe(values)  # nothing is submitted if they cannot be
    indices_handle = collectives.allgather(indices, f"{name}.indices", process_set)
    try:
        values_handle = collectives.allgather(values, f"{name}.values", process_set)
    except BaseException:
        collectives.table.abandon([indices_handle])
        raise
    shape = tensor.shape
    divisor = member_count(process_set) if op == Average else 1

    def wait() -> torch.Tensor:
        try:
            all_values: torch.Tensor = collectives.synchronize(values_handle)
        except Exception:
            collectives.table.abandon([indices_handle])
            raise
        all_indices: torch.Tensor = collectives.synchronize(indices_handle)
        if divisor != 1:
            rounding = None if all_values.is_floating_point() else "trunc"
            all_values = torch.div(all_values, divisor, rounding_mode=rounding)
        return torch.sparse_coo_tensor(all_indices.t(), all_values, shape, check_invariants=False)

    return wait


# -- reducescatter ------------------------------------------------------------------------------------------


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks and keep this rank's share of the rows; differentiable.

    Args:
        tensor: shape ``(d, *rest)``, contiguous, same shape and dtype on every rank: dtypes of
            :func:`allreduce`.
        name: identity across ranks; by default derived from the order of calls.
        compression: around the reduction, not part of the gradient.
        op: ``Average`` or ``Sum``.
        process_set: ranks that take part.
        prescale_factor, postscale_factor: ``postscale * reduce(prescale * tensor)``.

    Returns:
        Shape ``(d // n + (r < d % n), *rest)`` on set rank r of n: consecutive rows, after those of lower
        ranks.

    Raises:
        TypeError: ``op`` is ``None``, or ``process_set`` is not registered.
        ValueError: dtype, layout, no dimensions, ``name`` in flight, or this rank is not in the set.
        HorovodInternalError: another ``op``; not initialised; ranks disagree; a rank was lost.
    """
    _need_op(op)
    small, context = compression.compress(tensor)
    if small.requires_grad and torch.is_grad_enabled():
        reduced: torch.Tensor = apply(
            Reducescatter, small, name, op, prescale_factor, postscale_factor, process_set
        )
    else:
        handle = collectives.reducescatter(
            small, name, op, prescale_factor, postscale_factor, process_set, True
        )
        reduced = collectives.synchronize(handle)
    result: torch.Tensor = compression.decompress(reduced, context)
    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """:func:`reducescatter` without waiting, compression and autograd; returns a handle."""
    _need_op(op)
    return collectives.reducescatter(tensor, name, op, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """:func:`reducescatter` of all ``tensors`` as one operation; ``name`` is the base of the members'
    names."""
    _need_op(op)
    compressed = [compression.compress(tensor) for tensor in tensors]
    small = [tensor for tensor, _ in compressed]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in small):
        reduced = apply(
            GroupedReducescatter, name, op, prescale_factor, postscale_factor, process_set, *small
        )
    else:
        handle = collectives.grouped_reducescatter(
            small, name, op, prescale_factor, postscale_factor, process_set, True
        )
        reduced = collectives.synchronize(handle)
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, compressed, strict=True)
    ]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """:func:`grouped_reducescatter` without waiting, compression and autograd; one handle for all, whose
    result is a tuple."""
    _need_op(op)
    return collectives.grouped_reducescatter(
        tensors, name, op, prescale_factor, postscale_factor, process_set
    )


def _need_op(op: int) -> None:
    if not isinstance(op, int):
        raise TypeError(f"op must be Average or Sum, got {op!r}.")
