"""Reducescatter of PyTorch tensors in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from horovod.collectives.ops import Average, Sum, checked_op
from horovod.gradients.compression import NoneCompressor, checked_compressor, reduce_compressed
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count
from horovod.torch.autograd import CollectiveFunction, collectives, differentiable, run_noted, tracked
from horovod.torch.collectives.allgather import allgather, grouped_allgather
from horovod.torch.compression import Compression

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

_How: TypeAlias = tuple[int, float, float, ProcessSet]  # op, factors before and after, who


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks and keep this rank's share of the rows; differentiable: the
    gradient is the allgather of the upstream ones, times what one input counts for in the result. A Sum is
    scaled by the number of members: gradients are averaged over ranks later.

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
        HorovodInternalError: another ``op``; ranks disagree; a rank was lost.
    """
    _need_op(op)
    try:
        small, context = compression.compress(tensor)
    except AttributeError:
        checked_compressor(compression)
        raise
    reduced = _reduce(small, name, (op, prescale_factor, postscale_factor, process_set))
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
    how = op, prescale_factor, postscale_factor, process_set
    return reduce_compressed(compression, tensors, lambda small: _reduce_group(small, name, how))


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


class HorovodReducescatter(CollectiveFunction):
    """See ``horovod.torch.reducescatter``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Any:
        return run_noted(
            ctx,
            locals(),
            lambda given: reducescatter(
                given, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
            ),
            tensor,
        )


class HorovodGroupedReducescatter(CollectiveFunction):
    """See ``horovod.torch.grouped_reducescatter``; returns a tuple."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> Any:
        return run_noted(
            ctx,
            locals(),
            lambda *given: grouped_reducescatter(
                given, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
            ),
            *tensors,
        )


def _need_op(op: Any) -> None:
    if op is None:
        raise TypeError("op must be hvd.Average or hvd.Sum, got None.")
    if not isinstance(op, int):
        checked_op(op)


def _reduce(tensor: torch.Tensor, name: str | None, how: _How) -> torch.Tensor:
    if tracked(tensor):
        return differentiable(
            lambda given: _reduce(given, name, how),
            lambda upstream: allgather(_scaled(upstream, *how), process_set=how[-1]),
            tensor,
        )
    return collectives.run_reducescatter(tensor, name, *how)


def _reduce_group(tensors: Sequence[torch.Tensor], name: str | None, how: _How) -> tuple[torch.Tensor, ...]:
    if any(map(tracked, tensors)):
        return differentiable(
            lambda *given: _reduce_group(given, name, how),
            lambda *upstreams: grouped_allgather(
                [_scaled(upstream, *how) for upstream in upstreams], process_set=how[-1]
            ),
            *tensors,
        )
    return collectives.run_grouped_reducescatter(tensors, name, *how)


def _scaled(
    upstream: torch.Tensor, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> torch.Tensor:
    factor = prescale * postscale * (member_count(process_set) if op == Sum else 1)
    return upstream if factor == 1.0 else upstream * factor
