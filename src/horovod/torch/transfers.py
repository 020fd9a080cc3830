"""Operations of ``horovod.torch`` that move data as it is: allgather, broadcast and alltoall in their forms
(see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, overload

import torch
from torch.autograd.graph import increment_version

from horovod.collectives.forms import current_engine
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import (
    Allgather,
    Alltoall,
    Broadcast,
    GroupedAllgather,
    apply,
    collectives,
    new_output,
)

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]

_CPU: Final = torch.device("cpu")

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
        current_engine()  # before init this is HorovodInternalError, unlike what current() raises
        result: torch.Tensor = apply(
            Broadcast, tensor, root_rank, name, process_set, lifecycle.current().topology.rank
        )
        return result
    return collectives.run_broadcast(tensor, new_output(tensor), root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast` without waiting and autograd; returns a handle."""
    return collectives.broadcast(tensor, new_output(tensor), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`broadcast` into ``tensor`` itself; returns ``tensor``. To autograd it is a change in place: a
    backward pass that needs the old values raises."""
    collectives.run_broadcast(tensor, tensor, root_rank, name, process_set)
    if tensor.requires_grad:
        increment_version(tensor)
    return tensor


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`broadcast_` without waiting; returns a handle."""
    handle = collectives.broadcast(tensor, tensor, root_rank, name, process_set)
    if tensor.requires_grad:
        increment_version(tensor)
    return handle


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


# -- parts --------------------------------------------------------------------------------------------------


def _need_rows(tensor: torch.Tensor) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        raise IndexError("allgather concatenates along the first dimension; the tensor has none.")


def _read_splits(splits: Any) -> tuple[list[int], torch.device]:
    """The values of ``splits``, and where the caller expects the received ones. What depends on the number of
    members is checked at submission."""
    if not isinstance(splits, torch.Tensor):
        lifecycle.current()  # before init this is a ValueError, unlike for a tensor
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
