"""Keras on JAX. The compiled function calls the host once for all gradients of a step, and the host exchanges
them as arrays of NumPy.

Each array of such a call has a cost. So XLA joins the gradients of a group to one flat array, and cuts the
result into pieces.
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
from horovod._keras.frameworks.contract import Branch, Framework
from horovod.arrays import mpi_ops
from horovod.arrays.compression import FP16Compressor
from horovod.collectives.numpy_frontend import collectives
from horovod.errors import HorovodError, HorovodInternalError, ReplicasDifferError
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.fingerprints import fingerprint
from horovod.gradients.reduction import (
    PartialReduction,
    exchange,
    filled,
    ranks_of_average,
    reduce_in_groups,
    reduce_present,
    reduce_some,
    share_of_average,
    stays_local,
)
from horovod.gradients.replicas import Replicas, replicas_of
from horovod.gradients.settings import GradientSettings
from horovod.runtime import lifecycle

__all__ = ["ADAPTER", "Compression", "JaxFramework"]


# If other threads dispatch steps, training stops for ever before the host is called, from about 80 MB of
# gradients of one dtype on.
jax.config.update("jax_cpu_enable_async_dispatch", False)


class _BF16Compressor(FP16Compressor):
    """Reduce floating arrays as bfloat16: the range of float32 with 8 significant bits."""

    travels_as = "bfloat16"


class Compression:
    """Compressors to pass as ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = _BF16Compressor


def _traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


class _Collectives:
    """The collectives of JAX's arrays, outside of compiled functions: those of arrays of NumPy."""

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        of_numpy = getattr(mpi_ops, kind)
        return lambda tensor, **how: jnp.asarray(of_numpy(np.asarray(tensor), **how))


class JaxFramework(Framework):
    """JAX. The call of the host is part of the compiled step. Implements ``world.Follower``."""

    Compression = Compression
    collectives = _Collectives()
    failure: HorovodError | None = None  # the last failure within a compiled function

    def reduction(self, settings: GradientSettings) -> PartialReduction:
        return PartialReduction(functools.partial(_reduced, settings), _share_of_average(settings))

    def runs_at_once(self, value: Any) -> bool:
        return not _traced(value)

    def choose(self, condition: Any, if_true: Branch, if_false: Branch, variables: Sequence[Any]) -> Any:
        if not _traced(condition):
            return if_true() if condition else if_false()
        if not variables:
            return jax.lax.cond(condition, if_true, if_false)

        def with_values(branch: Branch) -> Callable[[], Any]:
            def run() -> Any:
                before = [(variable, variable.value) for variable in variables]
                with keras.StatelessScope(state_mapping=before) as scope:
                    outcome = branch()
                return outcome, [scope.get_current_value(variable) for variable in variables]

            return run

        # An assignment within a branch would leak a tracer of the branch: the values come out as results.
        outcome, values = jax.lax.cond(condition, with_values(if_true), with_values(if_false))
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return outcome

    def moments(self, own: Any) -> Any:
        return _moments(own)

    def own_failure(self, error: BaseException) -> HorovodError | None:
        if isinstance(error, HorovodInternalError):
            return error
        failure, self.failure = self.failure, None
        return failure if isinstance(error, RuntimeError) else None

    def enter(self, runtime: lifecycle.Runtime) -> None:
        self.failure = None  # of the world before: a script may have caught the error of JAX by itself

    def leave(self) -> None:
        """The failure may be what ended the world: it is still asked for."""

    # -- values ---------------------------------------------------------------------------------------------

    def tensor(self, value: Any, name: str | None) -> Any:
        return jnp.asarray(value)


def _share_of_average(settings: GradientSettings) -> Callable[[Any], Any] | None:
    """See ``share_of_average``. In elastic jobs a compiled step outlives the number of ranks, so it asks the
    host each time."""
    at_once = share_of_average(settings)
    if at_once is None:
        return None

    def divided(gradient: Any) -> Any:
        if not (_traced(gradient) and lifecycle.current().config.elastic):
            return at_once(gradient)

        def count(some: Any) -> list[Any]:
            return [np.array(ranks_of_average(settings.process_set), some.dtype)]

        result = jax.ShapeDtypeStruct((), gradient.dtype)
        (ranks,) = _on_the_host(count, [result], [jnp.ravel(gradient)[:1]])
        return gradient / ranks

    return divided


def _reduced(settings: GradientSettings, gradients: list[Any], variables: list[Any]) -> list[Any]:
    if not any(map(_traced, [*gradients, *(variable.value for variable in variables)])):
        return _reduced_at_once(settings, gradients, variables)

    def reduce_those(present: list[Any], places: list[int], lacking: str) -> list[Any]:
        theirs = [variables[place] for place in places]
        return _reduced_present(settings, [jnp.asarray(each) for each in present], theirs, lacking)

    return reduce_present(gradients, reduce_those)


def _reduced_at_once(settings: GradientSettings, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Outside of compiled functions ranks may lack different gradients."""
    if stays_local(settings.process_set):
        return gradients
    check = replicas_of(settings, variables, _fingerprints)
    check.visit()

    def zero(place: int) -> Any:
        return jnp.zeros_like(variables[place].value)

    def reduce(groups: list[list[Any]], absent: list[list[int]]) -> list[list[Any]]:
        # Memory of JAX must not be written to, and what is absent is reduced in place.
        outs = [[np.zeros(tensor.shape, tensor.dtype) for tensor in group] for group in groups]
        given = [
            [out if at in places else np.asarray(tensor, order="C") for at, (tensor, out) in enumerate(pairs)]
            for pairs, places in zip(map(zip, groups, outs), absent, strict=True)
        ]
        reduced = exchange(collectives, given, outs, settings, absent=absent)
        return [[None if each is None else jnp.asarray(each) for each in group] for group in reduced]

    complete, absent = filled(gradients, zero)
    complete = [jnp.asarray(each) for each in complete]
    result = reduce_some(complete, absent, settings.compression, reduce, variables, settings.groups)
    check.collect()
    return result


def _reduced_present(
    settings: GradientSettings, gradients: list[Any], variables: list[Any], lacking: str
) -> list[Any]:
    check = replicas_of(settings, variables, _fingerprints)

    def on_the_host(*arrays: Any) -> list[Any]:
        given = [np.ascontiguousarray(array) for array in arrays]
        if stays_local(settings.process_set):  # for a compiled step this is only known when it runs
            return [*given, np.array(False)]
        compares = check.announce()
        outs = [np.empty_like(array) for array in given]
        exchange(collectives, [[array] for array in given], [[out] for out in outs], settings, lacking)
        check.collect()
        return [*outs, np.array(compares)]

    def reduce(groups: list[list[Any]]) -> list[list[Any]]:
        flat = [jnp.concatenate([tensor.ravel() for tensor in group]) for group in groups]
        *reduced, compares = _on_the_host(on_the_host, [*flat, np.array(False)], flat)
        reduced = _shown(check, compares, [variable.value for variable in variables], reduced)
        return [_parts(whole, group) for whole, group in zip(reduced, groups, strict=True)]

    return reduce_in_groups(gradients, settings.compression, reduce, variables, settings.groups)


def _shown(check: Replicas, compares: Any, weights: list[Any], reduced: list[Any]) -> list[Any]:
    """Show ``check`` the weights of now, if this exchange ``compares``; returns ``reduced``, from which the
    update is computed afterwards: so it may overwrite the weights."""

    def show(*arrays: Any) -> Any:
        check.show(check.describe([fingerprint(np.asarray(array)) for array in arrays]))
        return np.int32(0)

    if not _traced(compares):
        if compares:
            show(*weights)
        return reduced
    done = jax.ShapeDtypeStruct((), jnp.int32)
    shown = jax.lax.cond(
        compares, lambda given: io_callback(show, done, *given), lambda given: jnp.int32(0), weights
    )
    ordered: list[Any]
    ordered, _ = jax.lax.optimization_barrier((reduced, shown))
    return ordered


def _fingerprints(variables: Sequence[Any]) -> list[int]:
    return [fingerprint(np.asarray(variable.value)) for variable in variables]


def _parts(whole: Any, like: list[Any]) -> list[Any]:
    """Cut ``whole`` into arrays of the shapes of ``like``."""
    parts, start = [], 0
    for tensor in like:
        stop = start + math.prod(tensor.shape)
        parts.append(whole[start:stop].reshape(tensor.shape))
        start = stop
    return parts


def _on_the_host(function: Callable[..., list[Any]], like: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Call ``function`` with ``arrays`` on the host: at once, or when the program runs that is being traced.

    Args:
        function: takes and returns arrays of NumPy.
        like: something of shape and dtype of each result.
    """

    def call(*given: Any) -> tuple[Any, ...]:
        try:
            return tuple(function(*given))
        except (HorovodInternalError, ReplicasDifferError) as error:
            ADAPTER.failure = error
            raise

    if not any(map(_traced, arrays)):
        return [jnp.asarray(out) for out in call(*arrays)]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in like]
    # Ordered, as ranks could otherwise not tell the exchanges of two steps in one program apart.
    return list(io_callback(call, shapes, *arrays, ordered=True))


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _moments(own: Any) -> Any:
    """See ``Framework.moments``."""
    return _moments_forward(own)[0]


def _moments_forward(own: Any) -> tuple[Any, tuple[Any, Any]]:
    def combine(own: Any) -> list[Any]:
        return [moments.combined(np.asarray(own)).astype(own.dtype)]

    (whole,) = _on_the_host(combine, [own], [own])
    return whole[1:], (own, whole)


def _moments_backward(saved: tuple[Any, Any], upstream: Any) -> tuple[Any]:
    def differentiate(*arrays: Any) -> list[Any]:
        exact = [np.asarray(array, np.float64) for array in arrays]
        return [moments.gradient(*exact).astype(arrays[0].dtype)]

    own, whole = saved
    (gradient,) = _on_the_host(differentiate, [own], [upstream, own, whole])
    return (gradient,)


_moments.defvjp(_moments_forward, _moments_backward)


ADAPTER = JaxFramework()
lifecycle.follow(ADAPTER)
