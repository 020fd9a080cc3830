"""Keras on JAX: the gradients of a step leave the compiled function by one call of the host, which exchanges
them as arrays of NumPy.

A call costs for every array that goes through it, so the gradients of a group travel as one flat array, which
XLA puts together and takes apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import io_callback

from horovod._keras import moments
from horovod._keras.frameworks.contract import Framework, Settings, share_of_average
from horovod.collectives.numpy_frontend import collectives
from horovod.common.basics import HorovodBasics
from horovod.errors import HorovodInternalError
from horovod.gradients.compression import CastCompressor, NoneCompressor
from horovod.gradients.groups import PartialReduction, plan_groups, scaling
from horovod.runtime.process_set import global_process_set

__all__ = ["ADAPTER", "Compression", "JaxFramework"]

_basics = HorovodBasics()

# With steps dispatched from other threads, training whose gradients of a dtype are some 80 MB stops for good
# before the host is called.
jax.config.update("jax_cpu_enable_async_dispatch", False)


class _FloatCompressor(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return bool(jnp.issubdtype(dtype, jnp.floating))

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_FloatCompressor):
    """Reduce floating arrays as float16."""

    @staticmethod
    def narrow(tensor: Any) -> Any:
        return tensor.astype(jnp.float16)


class BF16Compressor(_FloatCompressor):
    """Reduce floating arrays as bfloat16: the range of float32 with 8 significant bits."""

    @staticmethod
    def narrow(tensor: Any) -> Any:
        return tensor.astype(jnp.bfloat16)


class Compression:
    """Compressors to pass as ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def _traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


class JaxFramework(Framework):
    """JAX: the call of the host is part of what is compiled."""

    Compression = Compression
    init = _basics.init
    shutdown = _basics.shutdown
    failure: HorovodInternalError | None = None  # the last one on its way through a compiled function

    def reduction(self, settings: Settings) -> PartialReduction:
        return PartialReduction(functools.partial(_reduced, settings), share_of_average(self, settings))

    def scaled(self, gradient: Any, factor: float) -> Any:
        return gradient * jnp.asarray(factor, gradient.dtype)

    def choose(
        self,
        condition: Any,
        if_true: Callable[[], None],
        if_false: Callable[[], None],
        variables: Sequence[Any],
    ) -> None:
        if not _traced(condition):
            (if_true if condition else if_false)()
            return

        def values_after(branch: Callable[[], None]) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                before = [(variable, variable.value) for variable in variables]
                with keras.StatelessScope(state_mapping=before) as scope:
                    branch()
                return [scope.get_current_value(variable) for variable in variables]

            return run

        # An assignment within a branch would leak what belongs to it: the values come out as results.
        values = jax.lax.cond(condition, values_after(if_true), values_after(if_false))
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def moments(self, own: Any) -> Any:
        return _moments(own)

    def own_failure(self, error: BaseException) -> HorovodInternalError | None:
        if isinstance(error, HorovodInternalError):
            return error
        failure, self.failure = self.failure, None
        return failure if isinstance(error, RuntimeError) else None

    # -- values ---------------------------------------------------------------------------------------------

    def allreduce(
        self, value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any
    ) -> Any:
        tensor, context = compression.compress(jnp.asarray(value))
        array = np.asarray(tensor)
        out = np.empty_like(array)
        collectives.run_allreduce(array, out, name, op, prescale, postscale, global_process_set)
        return compression.decompress(jnp.asarray(out), context)

    def allgather(self, value: Any, name: str | None) -> Any:
        array = np.asarray(jnp.asarray(value))
        return jnp.asarray(collectives.synchronize(collectives.allgather(array, name, waited=True)))

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        array = np.array(jnp.asarray(value))
        return jnp.asarray(collectives.run_broadcast(array, array, root_rank, name, global_process_set))

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        array = np.asarray(jnp.asarray(value))
        return jnp.asarray(collectives.synchronize(collectives.reducescatter(array, name, op, waited=True)))


def _reduced(settings: Settings, gradients: list[Any], variables: list[Any]) -> list[Any]:
    compressed = [settings.compression.compress(gradient) for gradient in gradients]
    tensors = [jnp.asarray(tensor) for tensor, _ in compressed]
    plan = plan_groups([tensor.dtype.name for tensor in tensors], variables, settings.groups)
    flat = [jnp.concatenate([tensors[index].ravel() for index in group]) for group in plan]
    reduced = list(tensors)
    for group, whole in zip(plan, _exchanged(flat, settings), strict=True):
        start = 0
        for index in group:
            shape = tensors[index].shape
            stop = start + math.prod(shape)
            reduced[index] = whole[start:stop].reshape(shape)
            start = stop
    return [
        settings.compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, compressed, strict=True)
    ]


def _exchanged(flat: list[Any], settings: Settings) -> list[Any]:
    """The arrays ``flat``, one for each operation, reduced over the ranks."""
    prescale, postscale = scaling(settings.op, settings.predivide)

    def exchange(*arrays: Any) -> list[Any]:
        given = [np.ascontiguousarray(array) for array in arrays]
        outs = [np.empty_like(array) for array in given]
        handles = []
        for number, (array, out) in enumerate(zip(given, outs, strict=True)):
            name = f"{settings.name}.{number}"
            handles.append(
                collectives.allreduce(
                    array, out, name, settings.op, prescale, postscale, settings.process_set
                )
            )
        collectives.synchronize_all(handles)
        return outs

    return _on_the_host(exchange, flat, flat)


def _on_the_host(function: Callable[..., list[Any]], like: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """What ``function`` makes of ``arrays``, when the program that is being traced comes to it, if one is.

    Args:
        function: takes and returns arrays of NumPy.
        like: something of shape and dtype of each result.
    """

    def call(*given: Any) -> tuple[Any, ...]:
        try:
            return tuple(function(*given))
        except HorovodInternalError as error:
            ADAPTER.failure = error
            raise

    if not any(map(_traced, arrays)):
        return [jnp.asarray(out) for out in call(*arrays)]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in like]
    # Ordered: ranks could not tell the exchanges of two steps in one program apart otherwise.
    return list(io_callback(call, shapes, *arrays, ordered=True))


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _moments(own: Any) -> Any:
    """See ``Framework.moments``."""
    return _moments_forward(own)[0]


def _moments_forward(own: Any) -> tuple[Any, tuple[Any, Any]]:
    def exchange(own: Any) -> list[Any]:
        return [moments.combined(np.asarray(own)).astype(own.dtype)]

    (whole,) = _on_the_host(exchange, [own], [own])
    return whole[1:], (own, whole)


def _moments_backward(saved: tuple[Any, Any], upstream: Any) -> tuple[Any]:
    def exchange(*arrays: Any) -> list[Any]:
        exact = [np.asarray(array, np.float64) for array in arrays]
        return [moments.gradient(*exact).astype(arrays[0].dtype)]

    own, whole = saved
    (gradient,) = _on_the_host(exchange, [own], [upstream, own, whole])
    return (gradient,)


_moments.defvjp(_moments_forward, _moments_backward)


ADAPTER = JaxFramework()
