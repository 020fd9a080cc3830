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
from typing import Any, Final, overload

import torch

from horovod import _runtime
from horovod.collectives import Adasum, Average, Max, Min, Product, Sum, current_engine, reduce_op
from horovod.common.basics import HorovodBasics
from horovod.errors import InvalidArgumentError
from horovod.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    member_count,
    remove_process_set,
)
from horovod.torch.autograd import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    GroupedAllgather,
    GroupedAllreduce,
    GroupedReducescatter,
    Reducescatter,
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
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
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
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
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
_CPU: Final = torch.device("cpu")


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
            all_values: torch.Tensor = synchronize(values_handle)
        except Exception:
            collectives.table.abandon([indices_handle])
            raise
        all_indices: torch.Tensor = synchronize(indices_handle)
        if divisor != 1:
            rounding = None if all_values.is_floating_point() else "trunc"
            all_values = torch.div(all_values, divisor, rounding_mode=rounding)
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


# -- alltoall -----------------------------------------------------------------------------------------------


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor: ...


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send consecutive rows of ``tensor`` to each member and return those that came; differentiable.

    Args:
        tensor: shape ``(rows, *rest)``, contiguous; ``rest`` and dtype are the same on every member.
        splits: ``splits[i]`` rows go to set rank i: an int32 tensor or any sequence of integers, one for each
            member, each 0 or more. Their sum may be less than ``rows``; the last rows then go nowhere. By
            default (also: empty) each member gets equally many.
        name: identity across ranks; by default derived from the order of calls.
        process_set: ranks that take part.

    Returns:
        The rows from all members, in the order of set ranks; if ``splits`` is given, as a pair with the
        numbers of rows that came from each: int32, on the device of ``splits``, not differentiable.

    Raises:
        ValueError: on this rank alone: no dimensions; ``splits`` with another length, dtype or number of
            dimensions, negative, or more than there are; without ``splits`` a number of rows that the members
            do not divide; without a tensor as ``splits`` also: not initialised.
        HorovodInternalError: not initialised; ranks disagree; a rank was lost.
    """
    sizes, device = _read_splits(splits)
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled():
        result, received = apply(Alltoall, tensor, sizes, device, name, process_set)
    else:
        handle = collectives.alltoall(tensor, sizes, name, process_set, True, _mover(device))
        result, received = collectives.synchronize(handle)
    return result if splits is None else (result, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`alltoall` without waiting and autograd; returns a handle, whose result is the pair of rows and
    received numbers, also without ``splits``."""
    sizes, device = _read_splits(splits)
    return collectives.alltoall(tensor, sizes, name, process_set, False, _mover(device))


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


# -- waiting ------------------------------------------------------------------------------------------------


def poll(handle: int) -> bool:
    """Whether :func:`synchronize` would return at once.

    Raises:
        ValueError: the handle is unknown or already consumed.
    """
    return collectives.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result: a tensor, a tuple for a group, or the pair of
    rows and received numbers of an alltoall.

    The handle is consumed. An unknown or already consumed handle gives ``None``.

    Raises:
        HorovodInternalError: the operation failed.
    """
    return collectives.synchronize(handle)


def join(device: int = -1) -> int:
    """This rank has no more data: wait until every rank has joined, and return the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros: they count in averages, minima,
    maxima and products. All other operations of the global set fail for the others.

    Args:
        device: where a GPU build makes those zeros, -1 for the CPU; has no effect here.

    Raises:
        HorovodInternalError: not initialised; a rank was lost.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return after every rank of the set has called. Pending asynchronous operations may stay pending.

    Raises:
        TypeError: ``process_set`` is not registered.
        IndexError: it has been removed.
        ValueError: this rank is not in it.
        HorovodInternalError: not initialised; a rank was lost.
    """
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


def _need_op(op: int) -> None:
    if not isinstance(op, int):
        raise TypeError(f"op must be Average or Sum, got {op!r}.")


def _read_splits(splits: Any) -> tuple[list[int], torch.device]:
    """The values of ``splits``, and where the caller expects the received ones. What depends on the number of
    members is checked at submission."""
    if not isinstance(splits, torch.Tensor):
        size()  # before init this is a ValueError, unlike for a tensor
        if splits is None:
            return [], _CPU
        try:
            splits = torch.as_tensor(splits)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"splits must be integers, got {splits!r}: {error}") from error
        if splits.numel() and (splits.is_floating_point() or splits.is_complex()):
            raise InvalidArgumentError(f"splits must be integers, got {splits.dtype}.")
    elif splits.dtype != torch.int32:
        raise InvalidArgumentError(f"splits must be an int32 tensor, got {splits.dtype}.")
    if splits.dim() != 1:
        raise InvalidArgumentError(f"splits must have one dimension, got shape {list(splits.shape)}.")
    sizes: list[int] = splits.tolist()
    return sizes, splits.device


def _mover(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor] | None:
    return None if device == _CPU else lambda received: received.to(device)
