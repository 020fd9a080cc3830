"""The collectives as classes of autograd, for code that calls ``HorovodAllreduce.apply`` or derives from it.

Each runs the function of its collective, and takes the gradient from there. Arguments have the order of that
function without ``compression``; groups have their tensors last. A class that derives from one of these may
replace ``backward``; ``ctx`` has the arguments by their names. A ``forward`` of its own calls that of the
class, or comes with a ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod.collectives.ops import Average
from horovod.errors import InvalidArgumentError
from horovod.gradients.compression import NoneCompressor
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.collectives.allgather import allgather, grouped_allgather
from horovod.torch.collectives.allreduce import allreduce, grouped_allreduce
from horovod.torch.collectives.alltoall import alltoall
from horovod.torch.collectives.broadcast import broadcast
from horovod.torch.collectives.reducescatter import grouped_reducescatter, reducescatter

__all__ = [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
]


class _CollectiveFunction(torch.autograd.Function):
    """What they have in common."""

    @staticmethod
    def backward(ctx: Any, *upstreams: torch.Tensor) -> Any:
        if not hasattr(ctx, "node"):
            raise InvalidArgumentError(
                "This backward needs what its forward has noted in ctx. Call "
                "HorovodAllreduce.forward(ctx, ...), or that of the class you derive from, in the forward of "
                "your class; or give it a backward, too."
            )
        _, _, *gradients = ctx.node.apply(*upstreams)  # the node of `differentiable`
        others = [None] * (len(ctx.needs_input_grad) - len(gradients))
        return (*others, *gradients) if ctx.grouped else (*gradients, *others)


def _run(ctx: Any, arguments: dict[str, Any], run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Run a collective, and keep its node for ``backward``."""
    ctx.grouped = "tensors" in arguments
    for name, value in arguments.items():
        if name not in ("ctx", "tensor", "tensors"):
            setattr(ctx, name, value)
    with torch.enable_grad():  # off in `forward`, where the node would not be made
        given = [each.detach().requires_grad_(each.is_floating_point()) for each in tensors]
        result = run(*given)
    results = result if isinstance(result, list | tuple) else (result,)
    ctx.node = next((each.grad_fn for each in results if each.grad_fn is not None), None)
    ctx.mark_non_differentiable(*[each for each in results if not each.is_floating_point()])
    return tuple(each.detach() for each in results) if isinstance(result, list | tuple) else result.detach()


class HorovodAllreduce(_CollectiveFunction):
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
        return _run(
            ctx,
            locals(),
            lambda given: allreduce(
                given, average, name, NoneCompressor, op, prescale_factor, postscale_factor, process_set
            ),
            tensor,
        )


class HorovodGroupedAllreduce(_CollectiveFunction):
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
        return _run(
            ctx,
            locals(),
            lambda *given: grouped_allreduce(
                given, average, name, NoneCompressor, op, prescale_factor, postscale_factor, process_set
            ),
            *tensors,
        )


class HorovodAllgather(_CollectiveFunction):
    """See ``horovod.torch.allgather``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        return _run(ctx, locals(), lambda given: allgather(given, name, process_set), tensor)


class HorovodGroupedAllgather(_CollectiveFunction):
    """See ``horovod.torch.grouped_allgather``."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        return _run(ctx, locals(), lambda *given: grouped_allgather(given, name, process_set), *tensors)


class HorovodBroadcast(_CollectiveFunction):
    """See ``horovod.torch.broadcast``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        return _run(ctx, locals(), lambda given: broadcast(given, root_rank, name, process_set), tensor)


class HorovodAlltoall(_CollectiveFunction):
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
        return _run(ctx, locals(), lambda given: alltoall(given, splits, name, process_set), tensor)


class HorovodReducescatter(_CollectiveFunction):
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
        return _run(
            ctx,
            locals(),
            lambda given: reducescatter(
                given, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
            ),
            tensor,
        )


class HorovodGroupedReducescatter(_CollectiveFunction):
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
        return _run(
            ctx,
            locals(),
            lambda *given: grouped_reducescatter(
                given, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
            ),
            *tensors,
        )
