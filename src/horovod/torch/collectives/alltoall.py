"""Alltoall of PyTorch tensors in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, overload

import torch

from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import CollectiveFunction, collectives, differentiable, run_noted, tracked

__all__ = ["alltoall", "alltoall_async"]

_CPU: Final = torch.device("cpu")


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
    """Send consecutive rows of ``tensor`` to each member and return those that came; differentiable: the
    rows of the upstream gradient go back to where they came from, and rows that stayed home get zeros.

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
            do not divide; not initialised.
        HorovodInternalError: ranks disagree; a rank was lost.
    """
    follows = tracked(tensor)
    if splits is None and not follows:
        return collectives.run_even_alltoall(tensor, name, process_set)
    sizes, place = _read_splits(splits)
    run = _tracked if follows else _exchange
    result, received = run(tensor, sizes, name, process_set, place)
    return result if splits is None else (result, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`alltoall` without waiting and autograd; returns a handle, whose result is the pair of rows and
    received numbers, also without ``splits``."""
    sizes, place = _read_splits(splits)
    return collectives.alltoall(tensor, sizes, name, process_set, place)


class HorovodAlltoall(CollectiveFunction):
    """See ``horovod.torch.alltoall``; also without ``splits`` returns the pair of rows and received
    numbers."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        if splits is None:
            splits = torch.empty(0, dtype=torch.int32, device="cpu")
        return run_noted(ctx, locals(), lambda given: alltoall(given, splits, name, process_set), tensor)


def _exchange(tensor: torch.Tensor, *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    sizes, name, process_set, place = how
    return collectives.run_alltoall(tensor, sizes, name, process_set, place)


def _tracked(tensor: torch.Tensor, *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape = tensor.shape
    process_set = how[2]
    came: list[torch.Tensor] = []

    def run(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result, received = _exchange(given, *how)
        came.append(received)
        return result, received

    def gradient(upstream: torch.Tensor) -> torch.Tensor:
        own, _ = alltoall(upstream, came[0], process_set=process_set)
        stayed = shape[0] - len(own)
        return torch.cat([own, own.new_zeros((stayed, *shape[1:]))]) if stayed else own

    return differentiable(run, gradient, tensor)


def _read_splits(splits: Any) -> tuple[list[int], Callable[[torch.Tensor], torch.Tensor] | None]:
    """The values of ``splits``, and what moves the received ones to where the caller expects them. What
    depends on the number of members is checked at submission."""
    if not isinstance(splits, torch.Tensor):
        lifecycle.current()  # before init that is the error, whatever the splits are
        if splits is None:
            return [], None
        try:
            splits = torch.as_tensor(splits, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"splits must be integers, got {splits!r}: {error}") from error
        if splits.numel() and (splits.is_floating_point() or splits.is_complex()):
            raise InvalidArgumentError(f"splits must be integers, got {splits.dtype}.")
    elif splits.dtype != torch.int32:
        raise InvalidArgumentError(f"splits must be an int32 tensor, got {splits.dtype}.")
    if splits.dim() != 1:
        raise InvalidArgumentError(f"splits must have one dimension, got shape {list(splits.shape)}.")
    sizes: list[int] = splits.tolist()
    device = splits.device
    return sizes, None if device == _CPU else lambda received: received.to(device)
