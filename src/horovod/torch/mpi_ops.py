"""The collectives of ``horovod.torch``.

Of every collective there are up to four forms: ``x`` blocks, returns new tensors and takes part in autograd;
``x_`` blocks and works in place; ``x_async`` and ``x_async_`` return a handle for :func:`poll` and
:func:`synchronize`. A tensor must not be modified, and a result not be read, between submission and
``synchronize``.

All raise ``ValueError`` for what is wrong on this rank alone (dtype, layout, a name in flight, a root that
does not exist) and ``HorovodInternalError`` for what fails between ranks, at the latest in ``synchronize``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod import _runtime
from horovod.collectives import Adasum, Average, Max, Min, Product, Sum, current_engine, reduce_op
from horovod.common.basics import HorovodBasics
from horovod.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import (
    Allgather,
    Allreduce,
    Broadcast,
    GroupedAllgather,
    GroupedAllreduce,
    apply,
    collectives,
)
from horovod.torch.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ProcessSet",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]

_basics = HorovodBasics(__file__)

is_initialized = _basics.is_initialized
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

_empty_like = collectives.frontend.empty_like


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``. Old handles are
    forgotten."""
    if not _runtime.is_initialized():
        collectives.table.forget()
    _basics.init(*args, **kwargs)


def shutdown(*args: Any, **kwargs: Any) -> None:
    """End the world on every rank; operations that have not started fail with ``HorovodInternalError``."""
    _basics.shutdown(*args, **kwargs)


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
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor, postscale_factor: ``postscale * reduce(prescale * tensor)``.
        process_set: ranks that take part.

    Raises:
        ValueError: dtype, layout, ``name`` in flight, both ``average`` and ``op``.
        HorovodInternalError: not initialised; ranks disagree; a rank was lost.
    """
    op = reduce_op(op, average)
    small, context = compression.compress(tensor)
    if small.requires_grad and torch.is_grad_enabled():
        reduced: torch.Tensor = apply(
            Allreduce, small, name, op, prescale_factor, postscale_factor, process_set
        )
    else:
        handle = collectives.allreduce(
            small, _new_output(small), name, op, prescale_factor, postscale_factor, process_set, True
        )
        reduced = collectives.synchronize(handle)
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
    out = _new_output(tensor)
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
    """:func:`allreduce` into ``tensor`` itself, which may be a leaf that requires grad; returns
    ``tensor``."""
    if average is not None or op is None:
        op = reduce_op(op, average)
    handle = collectives.allreduce(
        tensor, tensor, name, op, prescale_factor, postscale_factor, process_set, True
    )
    result: torch.Tensor = collectives.synchronize(handle)
    return result


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
    return collectives.allreduce(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)


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
        outs = [_new_output(tensor) for tensor in small]
        handle = collectives.grouped_allreduce(
            small, outs, name, op, prescale_factor, postscale_factor, process_set, True
        )
        reduced = collectives.synchronize(handle)
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
    outs = [_new_output(tensor) for tensor in tensors]
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
    handle = collectives.grouped_allreduce(
        tensors, tensors, name, op, prescale_factor, postscale_factor, process_set, True
    )
    result: tuple[torch.Tensor, ...] = collectives.synchronize(handle)
    return result


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
    return collectives.grouped_allreduce(
        tensors, tensors, name, op, prescale_factor, postscale_factor, process_set
    )


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a COO tensor, as two allgathers ``<name>.indices`` and ``<name>.values``.

    Ranks may have different numbers of entries, also none.

    Returns:
        A function that waits and returns an uncoalesced COO tensor of the same dense size with the entries of
        all ranks; their values divided by the number of ranks if ``op`` is ``Average``, else as they are.
    """
    # Entries are rows of both, so that they can be concatenated. Coalescing first is up to the caller.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().contiguous()
    indices_handle = collectives.allgather(indices, f"{name}.indices", process_set)
    values_handle = collectives.allgather(values, f"{name}.values", process_set)
    shape = tensor.shape
    divisor = (process_set.size() or 1) if op == Average else 1

    def wait() -> torch.Tensor:
        all_values: torch.Tensor = synchronize(values_handle)
        all_indices: torch.Tensor = synchronize(indices_handle)
        if divisor != 1:
            all_values = all_values / divisor
        return torch.sparse_coo_tensor(all_indices.t(), all_values, shape, check_invariants=False)

    return wait


# -- allgather ----------------------------------------------------------------------------------------------


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate every rank's ``tensor`` along the first dimension, in rank order; differentiable.

    Args:
        tensor: at least one dimension, contiguous. The first dimension may differ between ranks, also be 0.

    Raises:
        IndexError: ``tensor`` has no dimensions.
    """
    _need_rows(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = apply(Allgather, tensor, name, process_set)
        return result
    gathered: torch.Tensor = collectives.synchronize(collectives.allgather(tensor, name, process_set, True))
    return gathered


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
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        result: tuple[torch.Tensor, ...] = apply(GroupedAllgather, name, process_set, *tensors)
        return result
    gathered: tuple[torch.Tensor, ...] = collectives.synchronize(
        collectives.grouped_allgather(tensors, name, process_set, True)
    )
    return gathered


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """:func:`grouped_allgather` without waiting and autograd; one handle for all."""
    return collectives.grouped_allgather(tensors, name, process_set)


# -- broadcast ----------------------------------------------------------------------------------------------


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the root's ``tensor`` on every rank, and leave ``tensor`` as it is; differentiable.

    Args:
        tensor: same shape and dtype on every rank, contiguous.
        root_rank: global rank of the sender.

    Raises:
        ValueError: ``root_rank`` is not a rank of the set.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        current_engine()  # before init this is HorovodInternalError, unlike what rank() raises
        result: torch.Tensor = apply(Broadcast, tensor, root_rank, name, process_set, rank())
        return result
    handle = collectives.broadcast(tensor, _new_output(tensor), root_rank, name, process_set, True)
    received: torch.Tensor = collectives.synchronize(handle)
    return received


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast` without waiting and autograd; returns a handle."""
    return collectives.broadcast(tensor, _new_output(tensor), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`broadcast` into ``tensor`` itself; returns ``tensor``."""
    result: torch.Tensor = collectives.synchronize(
        collectives.broadcast(tensor, tensor, root_rank, name, process_set, True)
    )
    return result


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast_` without waiting; returns a handle."""
    return collectives.broadcast(tensor, tensor, root_rank, name, process_set)


# -- waiting ------------------------------------------------------------------------------------------------


def poll(handle: int) -> bool:
    """Whether :func:`synchronize` would return at once.

    Raises:
        ValueError: the handle is unknown or already consumed.
    """
    return collectives.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result: a tensor, or a tuple for a group.

    The handle is consumed. An unknown or already consumed handle gives ``None``.

    Raises:
        HorovodInternalError: the operation failed.
    """
    return collectives.synchronize(handle)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return after every rank of the set has called. Pending asynchronous operations may stay pending."""
    collectives.barrier(process_set)


# -- parts --------------------------------------------------------------------------------------------------


def _new_output(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for the result of ``tensor``. What is wrong with ``tensor`` is reported by the submission."""
    try:
        return _empty_like(tensor)
    except TypeError:  # not a tensor
        return tensor


def _need_rows(tensor: torch.Tensor) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        raise IndexError("allgather concatenates along the first dimension; the tensor has none.")
