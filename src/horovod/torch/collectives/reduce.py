"""Reduce of PyTorch tensors to one rank, in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from horovod.collectives.ops import Average
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count
from horovod.torch.autograd import changed, collectives, differentiable, new_output, tracked

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

_How: TypeAlias = tuple[int, float, float, ProcessSet]  # op, factors before and after, who


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the reduction of all ranks' ``tensor`` on the root, and elsewhere a copy of ``tensor``;
    differentiable: every rank gets the root's gradient times what one input counts for in the result, the
    others besides their own. (For Min, Max and Product that is not a true derivative.)

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
    if tracked(tensor):
        return differentiable(
            lambda given: reduce(given, root_rank, name, *how),
            lambda upstream: _gradients([upstream], root_rank, how)[0],
            tensor,
        )
    return collectives.run_reduce(tensor, new_output(tensor), root_rank, name, *how)


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`reduce` without waiting and autograd; returns a handle."""
    how = op, prescale_factor, postscale_factor, process_set
    return collectives.reduce(tensor, new_output(tensor), root_rank, name, *how)


def reduce_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`reduce` into the root's ``tensor`` itself, which leaves the others' as they are; returns
    ``tensor``. To autograd it is a change in place, on every rank."""
    how = op, prescale_factor, postscale_factor, process_set
    collectives.run_reduce(tensor, tensor, root_rank, name, *how)
    changed([tensor])
    return tensor


def reduce_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`reduce_` without waiting; returns a handle."""
    how = op, prescale_factor, postscale_factor, process_set
    handle = collectives.reduce(tensor, tensor, root_rank, name, *how)
    changed([tensor])
    return handle


def grouped_reduce(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """:func:`reduce` of all ``tensors`` as one operation; ``name`` is the base of the members' names."""
    how = op, prescale_factor, postscale_factor, process_set
    if any(map(tracked, tensors)):
        return differentiable(
            lambda *given: grouped_reduce(given, root_rank, name, *how),
            lambda *upstreams: _gradients(upstreams, root_rank, how),
            *tensors,
        )
    outs = [new_output(tensor) for tensor in tensors]
    return collectives.run_grouped_reduce(tensors, outs, root_rank, name, *how)


def grouped_reduce_async(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_reduce` without waiting and autograd; one handle for all, whose result is a tuple."""
    how = op, prescale_factor, postscale_factor, process_set
    outs = [new_output(tensor) for tensor in tensors]
    return collectives.grouped_reduce(tensors, outs, root_rank, name, *how)


def grouped_reduce_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """:func:`grouped_reduce` into ``tensors`` themselves; returns them as a tuple."""
    how = op, prescale_factor, postscale_factor, process_set
    results = collectives.run_grouped_reduce(tensors, tensors, root_rank, name, *how)
    changed(results)
    return results


def grouped_reduce_async_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`grouped_reduce_` without waiting; one handle for all."""
    how = op, prescale_factor, postscale_factor, process_set
    handle = collectives.grouped_reduce(tensors, tensors, root_rank, name, *how)
    changed(tensors)
    return handle


def _gradients(upstreams: Sequence[torch.Tensor], root_rank: int, how: _How) -> list[torch.Tensor]:
    op, prescale, postscale, process_set = how
    factor = prescale * postscale / (member_count(process_set) if op == Average else 1)
    am_root = lifecycle.current().topology.rank == root_rank
    handles = []
    for upstream in upstreams:
        sent = upstream * factor if am_root else new_output(upstream)
        handles.append(collectives.broadcast(sent, sent, root_rank, None, process_set))
    came: list[torch.Tensor] = [collectives.synchronize(handle) for handle in handles]
    if not am_root:
        came = [own + upstream for own, upstream in zip(came, upstreams, strict=True)]
    return came
