"""Keras on PyTorch: gradients are reduced in place, one native call for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod._keras import moments
from horovod._keras.frameworks.contract import Framework, Settings, share_of_average
from horovod.collectives.forms import Average, Sum
from horovod.errors import HorovodInternalError
from horovod.gradients.groups import PartialReduction, plan_groups, scaling
from horovod.runtime.process_set import global_process_set
from horovod.torch import mpi_ops
from horovod.torch.autograd import apply, collectives
from horovod.torch.compression import Compression

__all__ = ["ADAPTER", "TorchFramework"]


class TorchFramework(Framework):
    """PyTorch: the exchange is no part of what is compiled."""

    Compression = Compression
    init = staticmethod(mpi_ops.init)
    shutdown = staticmethod(mpi_ops.shutdown)

    def reduction(self, settings: Settings) -> PartialReduction:
        # Compiled training steps (jit_compile=True) leave the graph for the exchange and come back.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        @torch.no_grad()
        def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
            return _reduced(gradients, variables, settings)

        return PartialReduction(reduce, share_of_average(self, settings))

    def scaled(self, gradient: Any, factor: float) -> Any:
        return gradient * factor

    def dense(self, gradient: Any) -> Any | None:
        return gradient.to_dense() if gradient.layout != torch.strided else None

    def choose(
        self,
        condition: Any,
        if_true: Callable[[], None],
        if_false: Callable[[], None],
        variables: Sequence[Any],
    ) -> None:
        if condition:
            if_true()
        else:
            if_false()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def moments(self, own: Any) -> Any:
        if own.is_meta:  # Keras finds shapes out
            return torch.empty_like(own[1:])
        return apply(_Moments, own)

    def own_failure(self, error: BaseException) -> HorovodInternalError | None:
        return error if isinstance(error, HorovodInternalError) else None

    def allreduce(
        self, value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any
    ) -> Any:
        return mpi_ops.allreduce(
            torch.as_tensor(value),
            name=name,
            op=op,
            compression=compression,
            prescale_factor=prescale,
            postscale_factor=postscale,
        )

    def allgather(self, value: Any, name: str | None) -> Any:
        return mpi_ops.allgather(torch.as_tensor(value), name)

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        return mpi_ops.broadcast(torch.as_tensor(value), root_rank, name)

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        assert op in (Average, Sum)
        return mpi_ops.reducescatter(torch.as_tensor(value), name=name, op=op, process_set=global_process_set)


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


def _reduced(gradients: list[Any], variables: list[Any], settings: Settings) -> list[Any]:
    prescale, postscale = scaling(settings.op, settings.predivide)
    compressed = [settings.compression.compress(gradient) for gradient in gradients]
    tensors = [tensor.contiguous() for tensor, _ in compressed]
    plan = plan_groups([tensor.dtype for tensor in tensors], variables, settings.groups)
    handles = []
    for number, group in enumerate(plan):
        members = [tensors[index] for index in group]
        name = f"{settings.name}.{number}"
        handles.append(
            collectives.grouped_allreduce(
                members, members, name, settings.op, prescale, postscale, settings.process_set
            )
        )
    collectives.synchronize_all(handles)
    return [
        settings.compression.decompress(tensor, context)
        for tensor, (_, context) in zip(tensors, compressed, strict=True)
    ]


ADAPTER = TorchFramework()
