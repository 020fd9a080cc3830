"""Collectives as nodes of autograd's graph.

The backward pass of a collective is itself a collective of the same ranks. Its operations are unnamed, so all
ranks must run them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from horovod.collectives.forms import Collectives
from horovod.errors import InvalidArgumentError
from horovod.torch.frontend import TorchFrontend

__all__ = [
    "CollectiveFunction",
    "apply",
    "changed",
    "collectives",
    "differentiable",
    "new_output",
    "run_noted",
    "tracked",
]

R = TypeVar("R")

collectives: Collectives[torch.Tensor] = Collectives(TorchFrontend())
"""The collectives of this framework, with all its outstanding handles."""

_empty_like = collectives.frontend.empty_like


def new_output(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for the result of ``tensor``. What is wrong with ``tensor`` is reported by the submission."""
    try:
        return _empty_like(tensor)
    except (TypeError, AttributeError):  # not a tensor
        return tensor


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Run ``function`` as a node of the graph."""
    return function.apply(*arguments)


def tracked(tensor: Any) -> bool:
    """Return whether autograd follows what is done with ``tensor``. In forward mode that is an error of the
    node: it has no derivative of its own there, and the tangent would be lost."""
    if getattr(tensor, "requires_grad", False) and torch.is_grad_enabled():
        return True
    return forward_ad._current_level >= 0 and _has_tangent(tensor)


def _has_tangent(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None


def differentiable(run: Callable[..., R], gradient: Callable[..., Any], *tensors: torch.Tensor) -> R:
    """Return ``run(*tensors)``, a tensor or a tuple of tensors, as a node of the graph. No gradients are
    recorded while ``run`` runs.

    Args:
        gradient: takes one contiguous upstream gradient for each floating result, and returns the gradients
            of the floating ``tensors``; a single tensor has a single gradient. It must not hold ``tensors``:
            their memory would live as long as the graph.
    """
    result: R = apply(_Node, run, gradient, *tensors)
    return result


def changed(tensors: Sequence[torch.Tensor]) -> None:
    """Tell autograd of a change in place: a backward pass that needs the old values of ``tensors`` raises."""
    increment_version([tensor for tensor in tensors if tensor.requires_grad])


class _Node(torch.autograd.Function):
    """See :func:`differentiable`. Upstream gradients are made contiguous: autograd hands over expanded ones,
    for example those of ``sum()``; missing ones count as zeros."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., Any], gradient: Callable[..., Any], *tensors: torch.Tensor
    ) -> Any:
        result = run(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        ctx.gradient = gradient
        ctx.given = [tensor.is_floating_point() for tensor in tensors]
        ctx.results = [each.is_floating_point() for each in results]
        ctx.mark_non_differentiable(*[each for each in results if not each.is_floating_point()])
        return result

    @staticmethod
    def backward(ctx: Any, *upstreams: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        own = ctx.gradient(
            *[each.contiguous() for each, floats in zip(upstreams, ctx.results, strict=True) if floats]
        )
        gradients = iter((own,) if isinstance(own, torch.Tensor) else own)
        return (None, None, *[next(gradients) if floats else None for floats in ctx.given])


class CollectiveFunction(torch.autograd.Function):
    """The base of ``HorovodAllreduce`` and the like, for code that calls ``apply`` of these or derives from
    them. Each runs the function of its collective, and takes the gradient from there.

    Arguments have the order of that function without ``compression``; groups have their tensors last. A class
    that derives from one of these may replace ``backward``; ``ctx`` has the arguments by their names. A
    ``forward`` of its own calls that of the class, or comes with a ``backward``.
    """

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


def run_noted(ctx: Any, arguments: dict[str, Any], run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
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
