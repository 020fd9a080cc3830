"""The reduction of the gradients of a step, for optimizers and tapes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from horovod.gradients.compression import NoneCompressor
from horovod.gradients.groups import Groups
from horovod.gradients.reduction import PartialReduction, reduce_in_groups, reduce_present, stays_local
from horovod.gradients.settings import GradientSettings
from horovod.runtime.process_set import ProcessSet
from horovod.tensorflow.collectives.allreduce import grouped_allreduce
from horovod.tensorflow.eager_reduction import kind_of, reduce_eagerly
from horovod.tensorflow.replicas import compare
from horovod.tensorflow.world_ops import decides_at_run_time, exchanges, members

__all__ = ["allreduce_gradients", "densified", "is_marked", "mark", "partial", "reduction"]


def reduction(settings: GradientSettings) -> PartialReduction:
    """An object that reduces the gradients of a step, except for those of local variables."""
    return partial(allreduce_gradients(settings), settings)


def partial(allreduce: Callable[..., Sequence[Any]], settings: GradientSettings) -> PartialReduction:
    """``allreduce`` for all variables that are not registered as local. Gradients of local variables are
    divided by the number of ranks if the settings say so."""
    process_set = settings.process_set

    def scale(gradient: Any) -> Any:
        if decides_at_run_time():
            ranks = tf.where(exchanges(process_set), members(process_set), 1)
            return _divided(gradient, tf.cast(ranks, gradient.dtype))
        return gradient if stays_local(process_set) else _divided(gradient, members(process_set))

    return PartialReduction(allreduce, scale if settings.scale_local_gradients else None)


def allreduce_gradients(settings: GradientSettings, *, compares: bool = True) -> Callable[..., list[Any]]:
    """A function that reduces the gradients of a step over the process set: ``fn(grads, vars=None,
    use_generic_names=False)``.

    ``fn`` takes gradients (tensors, ``IndexedSlices`` or ``None``) and their variables (needed if the groups
    are lists), and returns the reduced gradients as a list in their order. It works in eager mode, in
    ``tf.function`` and in v1 graphs. Everything of one dtype travels as one operation, unless the groups say
    otherwise.

    In eager mode and with variables, a gradient stays ``None`` if no rank has it; if some rank has it the
    others bring zeros. In a graph, as without variables, ``None`` stays ``None``, and ranks that lack
    gradients of different variables get an error.

    Where this process is not in the set, or alone in it, gradients stay as they are, and a graph gets no
    operation of ours. That is decided when ``fn`` runs, in Python; with ``HOROVOD_ELASTIC`` set, graphs
    decide at run time, as they outlive the number of ranks they were built with.

    The operations are called ``<name>_Allreduce/gradients_<number>``, whatever the gradients are called, so
    that ranks agree whose graphs differ in other parts. In a process set it is
    ``<name>_Allreduce_in_set_<id>``: graphs of ranks that are in different sets differ there. With
    ``use_generic_names`` they are called ``grad_<number>``, and the name scopes around them do not count
    either.

    Args:
        compares: ranks compare their replicas of the variables before some exchanges. They cannot where the
            variables hold a step of each rank's own.

    Raises (from ``fn``):
        ValueError: ``init()`` has not been called.
        NotImplementedError: sparse gradients with another reduction than ``Sum`` and ``Average``, or with a
            predivide factor.
    """
    prescale, postscale = settings.scales
    process_set = settings.process_set

    def compared(variables: Sequence[Any] | None) -> list[Any]:
        return compare(settings, variables) if compares else []

    def reduced(gradients: Sequence[Any], variables: Sequence[Any] | None, stem: str, end: str) -> list[Any]:
        def reduce(groups: list[list[Any]]) -> list[list[Any]]:
            # Slices first: ranks that disagree about what is sparse then do so in the first operation that
            # differs, and the error says it.
            order = sorted(
                range(len(groups)), key=lambda index: not isinstance(groups[index][0], tf.IndexedSlices)
            )
            outcome: list[list[Any]] = [[] for _ in groups]
            for number, index in enumerate(order):
                outcome[index] = grouped_allreduce(
                    groups[index],
                    device_dense=settings.device_dense,
                    device_sparse=settings.device_sparse,
                    compression=settings.compression,
                    op=settings.op,
                    prescale_factor=prescale,
                    postscale_factor=postscale,
                    process_set=process_set,
                    ignore_name_scope=stem == "grad",
                    name=f"{stem}_{number}{end}",
                )
            return outcome

        return reduce_in_groups(gradients, NoneCompressor, reduce, variables, settings.groups, kind_of)

    def allreduce_grads(
        grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Any]:
        with tf.name_scope(_scope(settings)):
            stem = "grad" if use_generic_names else "gradients"

            def reduce(gradients: list[Any], places: list[int], end: str) -> Any:
                variables = None if vars is None else [vars[place] for place in places]
                if decides_at_run_time():
                    with tf.control_dependencies(compared(vars)):
                        return tf.cond(
                            exchanges(process_set),
                            lambda: reduced(gradients, variables, stem, end),
                            lambda: gradients,
                        )
                if stays_local(process_set):
                    return gradients
                with tf.control_dependencies(compared(vars)):
                    return reduced(gradients, variables, stem, end)

            result = [densified(each) for each in grads] if settings.sparse_as_dense else list(grads)
            if vars is None or not tf.executing_eagerly():
                return reduce_present(result, reduce)
            if stays_local(process_set) or not result:
                return result
            compared(vars)
            return reduce_eagerly(settings, result, vars, stem)

    return allreduce_grads


def _scope(settings: GradientSettings) -> str:
    """The name scope around the operations. TensorFlow numbers scopes of one name as a graph makes them, and
    ranks that are in other sets make others."""
    scope, number = f"{settings.name}_Allreduce", settings.process_set.process_set_id
    # A graph that outlives the number of ranks outlives the numbers of sets, too.
    return f"{scope}_in_set_{number}" if number and not decides_at_run_time() else scope


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Groups,
    process_set: ProcessSet,
) -> Callable[..., list[Any]]:
    """:func:`allreduce_gradients` for others, who know it by this name."""
    return allreduce_gradients(GradientSettings.of(locals()))


def densified(gradient: Any) -> Any:
    """``gradient`` as a dense tensor; ``None`` stays ``None``."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _divided(gradient: Any, by: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / by, gradient.indices, gradient.dense_shape)
    return gradient / by


# By identity, as tensors compare element by element; weak, as a mark must not keep a gradient alive.
_marked: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def mark(tensors: Iterable[Any]) -> None:
    """Mark ``tensors`` as reduced; ``None`` is passed over."""
    for tensor in tensors:
        if tensor is not None:
            _marked[id(tensor)] = tensor


def is_marked(tensor: Any) -> bool:
    """Return whether ``tensor`` was given to :func:`mark`. A tensor that is computed from it has no mark."""
    return tensor is not None and _marked.get(id(tensor)) is tensor
