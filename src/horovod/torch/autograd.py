"""Gradients of the collectives. The backward pass of a collective is itself a collective of the same ranks.

Its operations are unnamed, so all ranks must run them in the same order. Upstream gradients are made
contiguous: autograd hands over expanded ones, for example those of ``sum()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from horovod.collectives.forms import Average, Collectives, Sum
from horovod.runtime.process_set import ProcessSet, member_count
from horovod.torch.frontend import TorchFrontend

__all__ = [
    "Allgather",
    "Allreduce",
    "Alltoall",
    "Broadcast",
    "GroupedAllgather",
    "GroupedAllreduce",
    "GroupedReducescatter",
    "Reducescatter",
    "apply",
    "collectives",
    "new_output",
]

collectives: Collectives[torch.Tensor] = Collectives(TorchFrontend())
"""The collectives of this framework, with all its outstanding handles."""

_empty_like = collectives.frontend.empty_like
_CPU: Final = torch.device("cpu")


def new_output(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for the result of ``tensor``. What is wrong with ``tensor`` is reported by the submission."""
    try:
        return _empty_like(tensor)
    except (TypeError, AttributeError):  # not a tensor
        return tensor


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Run ``function`` as a node of the graph."""
    return function.apply(*arguments)


class Allreduce(torch.autograd.Function):
    """Backward: the same reduction of the upstream gradient. (For Min, Max and Product not a true
    derivative.)"""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.reduction = (op, prescale, postscale, process_set)
        return collectives.run_allreduce(
            tensor, _empty_like(tensor), name, op, prescale, postscale, process_set
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (apply(Allreduce, grads[0].contiguous(), None, *ctx.reduction), None, None, None, None, None)


class GroupedAllreduce(torch.autograd.Function):
    """Backward: one grouped reduction of all upstream gradients; missing ones count as zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.reduction = (op, prescale, postscale, process_set)
        outs = [_empty_like(tensor) for tensor in tensors]
        result = collectives.run_grouped_allreduce(tensors, outs, name, op, prescale, postscale, process_set)
        _mark_integers(ctx, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wanted = [grad.contiguous() for grad, floats in zip(grads, ctx.differentiable, strict=True) if floats]
        reduced = iter(apply(GroupedAllreduce, None, *ctx.reduction, *wanted))
        own = [next(reduced) if floats else None for floats in ctx.differentiable]
        return (None, None, None, None, None, *own)


class Allgather(torch.autograd.Function):
    """Backward: average of the upstream gradients, of which each rank keeps its own rows."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        ctx.process_set = process_set
        ctx.rows = tensor.shape[0]
        result: torch.Tensor = collectives.synchronize(
            collectives.allgather(tensor, name, process_set, waited=True)
        )
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        before = _rows_before([ctx.rows], ctx.process_set)[0]
        average = apply(Allreduce, grads[0].contiguous(), None, Average, 1.0, 1.0, ctx.process_set)
        return average.narrow(0, before, ctx.rows), None, None


class GroupedAllgather(torch.autograd.Function):
    """Backward: like :class:`Allgather`, for all members at once."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        result: tuple[torch.Tensor, ...] = collectives.synchronize(
            collectives.grouped_allgather(tensors, name, process_set, waited=True)
        )
        _mark_integers(ctx, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        before = _rows_before(ctx.rows, ctx.process_set)
        wanted = [grad.contiguous() for grad, floats in zip(grads, ctx.differentiable, strict=True) if floats]
        averages = iter(apply(GroupedAllreduce, None, Average, 1.0, 1.0, ctx.process_set, *wanted))
        own = [
            next(averages).narrow(0, first, rows) if floats else None
            for first, rows, floats in zip(before, ctx.rows, ctx.differentiable, strict=True)
        ]
        return (None, None, *own)


class Broadcast(torch.autograd.Function):
    """Backward: average of the upstream gradients on the root, zeros elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, rank: int
    ) -> torch.Tensor:
        ctx.am_root = rank == root_rank
        ctx.process_set = process_set
        return collectives.run_broadcast(tensor, _empty_like(tensor), root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        average = apply(Allreduce, grads[0].contiguous(), None, Average, 1.0, 1.0, ctx.process_set)
        return (average if ctx.am_root else torch.zeros_like(average)), None, None, None, None


class Alltoall(torch.autograd.Function):
    """Backward: the rows of the upstream gradient go back to where they came from; rows that stayed home have
    a gradient of zero. The received counts are the second result."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: Sequence[int],
        device: torch.device,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        handle = collectives.alltoall(tensor, splits, name, process_set, waited=True)
        result: torch.Tensor
        result, received = collectives.synchronize(handle)
        ctx.rows = tensor.shape[0]
        ctx.received = received.tolist()
        ctx.process_set = process_set
        received = received.to(device)
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        upstream = grads[0].contiguous()
        own, _ = apply(Alltoall, upstream, ctx.received, _CPU, None, ctx.process_set)
        if own.shape[0] < ctx.rows:
            own = torch.cat([own, own.new_zeros((ctx.rows - own.shape[0], *own.shape[1:]))])
        return own, None, None, None, None


class Reducescatter(torch.autograd.Function):
    """Backward: allgather of the upstream gradients, times what one input counts for in the result. A Sum is
    scaled by the number of members: gradients are averaged over ranks later."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        handle = collectives.reducescatter(tensor, name, op, prescale, postscale, process_set, waited=True)
        ctx.factor = _scatter_factor(op, prescale, postscale, process_set)
        ctx.process_set = process_set
        result: torch.Tensor = collectives.synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        own = apply(Allgather, _scaled(grads[0], ctx.factor), None, ctx.process_set)
        return own, None, None, None, None, None


class GroupedReducescatter(torch.autograd.Function):
    """Backward: like :class:`Reducescatter`, for all members at once."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        handle = collectives.grouped_reducescatter(
            tensors, name, op, prescale, postscale, process_set, waited=True
        )
        ctx.factor = _scatter_factor(op, prescale, postscale, process_set)
        ctx.process_set = process_set
        result: tuple[torch.Tensor, ...] = collectives.synchronize(handle)
        _mark_integers(ctx, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wanted = [
            _scaled(grad, ctx.factor)
            for grad, floats in zip(grads, ctx.differentiable, strict=True)
            if floats
        ]
        gathered = iter(apply(GroupedAllgather, None, ctx.process_set, *wanted))
        own = [next(gathered) if floats else None for floats in ctx.differentiable]
        return (None, None, None, None, None, *own)


def _mark_integers(ctx: Any, results: Sequence[torch.Tensor]) -> None:
    """Note which members of a group have a gradient."""
    ctx.differentiable = [result.is_floating_point() for result in results]
    ctx.mark_non_differentiable(*[result for result in results if not result.is_floating_point()])


def _scatter_factor(op: int, prescale: float, postscale: float, process_set: ProcessSet) -> float:
    members = member_count(process_set) if op == Sum else 1
    return members * prescale * postscale


def _scaled(grad: torch.Tensor, factor: float) -> torch.Tensor:
    """A contiguous ``grad`` times ``factor``; ``grad`` itself is not modified."""
    return (grad if factor == 1.0 else grad * factor).contiguous()


def _rows_before(rows: list[int], process_set: ProcessSet) -> list[int]:
    """For each gathered tensor, how many rows of lower ranks come before this rank's."""
    mine = torch.tensor([rows], dtype=torch.int64)
    everyone: torch.Tensor = collectives.synchronize(
        collectives.allgather(mine, None, process_set, waited=True)
    )
    rank = process_set.rank()
    assert rank is not None  # an operation on the set has just succeeded
    before: list[int] = everyone[:rank].sum(dim=0).tolist()
    return before
