"""Keras on PyTorch. Gradients are averaged in place, by one native call for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod._keras import moments
from horovod._keras.frameworks.contract import Branch, Framework
from horovod.collectives.ops import Average
from horovod.errors import HorovodInternalError
from horovod.gradients.reduction import (
    PartialReduction,
    exchange,
    filled,
    reduce_some,
    share_of_average,
    stays_local,
)
from horovod.gradients.replicas import replicas_of
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import own_variable
from horovod.torch import mpi_ops
from horovod.torch.autograd import apply, collectives
from horovod.torch.compression import Compression
from horovod.torch.replicas import fingerprints

__all__ = ["ADAPTER", "TorchFramework"]


class TorchFramework(Framework):
    """PyTorch. The exchange runs outside of compiled steps."""

    Compression = Compression
    collectives = mpi_ops

    def reduction(self, settings: GradientSettings) -> PartialReduction:
        # Compiled training steps (jit_compile=True) leave the graph for the exchange and come back.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        @torch.no_grad()
        def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
            if stays_local(settings.process_set):
                return gradients
            check = replicas_of(settings, variables, fingerprints)
            check.visit()
            reduced = _reduced(gradients, variables, settings)
            check.collect()
            return reduced

        return PartialReduction(reduce, share_of_average(settings))

    def dense(self, gradient: Any) -> Any | None:
        return gradient.to_dense() if gradient.layout != torch.strided else None

    def choose(self, condition: Any, if_true: Branch, if_false: Branch, variables: Sequence[Any]) -> Any:
        return if_true() if condition else if_false()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def moments(self, own: Any) -> Any:
        if own.is_meta:  # Keras asks for shapes only
            return torch.empty_like(own[1:])
        return apply(_Moments, own)

    def own_failure(self, error: BaseException) -> HorovodInternalError | None:
        return error if isinstance(error, HorovodInternalError) else None

    def tensor(self, value: Any, name: str | None) -> Any:
        return torch.as_tensor(value)


class _Moments(torch.autograd.Function):
    """See ``Framework.moments``."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor) -> torch.Tensor:
        ctx.own = _array(own)
        ctx.whole = moments.combined(ctx.own)
        return torch.from_numpy(ctx.whole[1:]).to(own)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(moments.gradient(_array(upstream), ctx.own, ctx.whole)).to(upstream)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float64).numpy()


def _reduced(gradients: list[Any], variables: list[Any], settings: GradientSettings) -> list[Any]:
    def zero(place: int) -> torch.Tensor:
        like = own_variable(variables[place])
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)

    taken: set[int] = set()

    def memory_for(tensor: torch.Tensor) -> torch.Tensor:
        """Memory to reduce ``tensor`` in: its own if it is used for nothing else. Two variables may have one
        gradient, and so may two optimizers: an average of equal averages is the same, a sum is not."""
        own = tensor.contiguous()
        if settings.op == Average and own.data_ptr() not in taken:
            taken.add(own.data_ptr())
            return own
        return own.clone() if own is tensor else own

    def reduce(groups: list[list[Any]], absent: list[list[int]]) -> list[list[Any]]:
        groups = [[memory_for(tensor) for tensor in group] for group in groups]
        return exchange(collectives, groups, groups, settings, absent=absent)

    complete, absent = filled(gradients, zero)
    return reduce_some(complete, absent, settings.compression, reduce, variables, settings.groups)


ADAPTER = TorchFramework()
