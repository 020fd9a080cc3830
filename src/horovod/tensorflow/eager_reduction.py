"""The reduction of gradients in eager code, where ranks may lack different ones in each step.

A gradient that some rank has is exchanged, and the others bring zeros; one that no rank has stays ``None``,
as in one process. All ranks make the same operations, over all variables, and learn from these who has what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from horovod.collectives.allreduce import check_adasum
from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Adasum, Average, Sum
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.reduction import filled, reduce_in_groups, reduce_some
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import own_variable
from horovod.tensorflow.calls import check_world
from horovod.tensorflow.collectives.allreduce import check_sparse, grouped_allreduce, reduce_dense
from horovod.tensorflow.fallback import failures_as_of_ops

__all__ = ["kind_of", "reduce_eagerly"]

# Rows of the table in which ranks count who has what for each variable.
_DENSE: Final = 0
_SPARSE: Final = 1
_WIDE: Final = 2  # sparse, with indices of 64 bits


def kind_of(gradient: Any) -> tuple[Any, ...]:
    """The properties that all tensors of one operation share."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.dtype, gradient.indices.dtype
    return (tf.as_dtype(gradient.dtype),)


def reduce_eagerly(
    settings: GradientSettings, gradients: Sequence[Any], variables: Sequence[Any], stem: str
) -> list[Any]:
    """The reduced gradients of a step, in the order of ``variables``.

    Args:
        gradients: tensors, ``IndexedSlices`` or ``None``.
        stem: begins the names of the operations.

    Raises:
        NotImplementedError: see ``allreduce``.
        tf.errors.OpError: the exchange failed; or a gradient is sparse on some ranks and dense on others.
    """
    check_world(settings.process_set)
    if settings.op == Adasum:
        check_adasum(settings.process_set)
    # What has no gradients, as integers, has none on any rank.
    chosen = [
        place
        for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        if gradient is not None or tf.as_dtype(own_variable(variable).dtype).is_floating
    ]
    result = list(gradients)
    of_chosen = _reduced([gradients[i] for i in chosen], [variables[i] for i in chosen], settings, stem)
    for place, gradient in zip(chosen, of_chosen, strict=True):
        result[place] = gradient
    return result


def _reduced(
    gradients: Sequence[Any], variables: Sequence[Any], settings: GradientSettings, stem: str
) -> list[Any]:
    sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    if any(sparse):
        check_sparse(settings.op, *settings.scales)

    def zero(place: int) -> Any:
        value = own_variable(variables[place])
        shape, dtype = tf.convert_to_tensor(value).shape, tf.as_dtype(value.dtype)
        # Zeros of NumPy take no memory until somebody writes to them: a table may be large.
        plain = settings.compression is NoneCompressor
        return np.zeros(shape, dtype.as_numpy_dtype) if plain else tf.zeros(shape, dtype)

    dense = [None if slices else each for slices, each in zip(sparse, gradients, strict=True)]
    complete, absent = filled(dense, zero)
    # One more number says whether a rank has slices: then all ranks count them afterwards. Other reductions
    # refuse them.
    marks = [float(any(sparse))] if settings.op in (Sum, Average) else []

    def reduce(groups: list[list[Any]], missing: list[list[int]]) -> list[list[Any]]:
        outcome = []
        for number, (group, places) in enumerate(zip(groups, missing, strict=True)):
            reduced = reduce_dense(
                group,
                places,
                settings.device_dense,
                settings.compression,
                f"{stem}_{number}",
                settings.op,
                *settings.scales,
                stem == "grad",
                settings.process_set,
                marks if number == 0 else None,
            )
            outcome.append(reduced)
        return outcome

    result = reduce_some(complete, absent, NoneCompressor, reduce, variables, settings.groups, kind=kind_of)
    if marks and float(marks[0]) != 0.0:
        slices = _reduce_slices(settings, gradients, variables, stem)
        for place, gradient in slices.items():
            result[place] = gradient
    return result


def _reduce_slices(
    settings: GradientSettings, gradients: Sequence[Any], variables: Sequence[Any], stem: str
) -> dict[int, Any]:
    """By place, the reduced gradients of the variables for which some rank has slices; who has none brings
    no rows."""
    table = np.zeros((3, len(gradients)), np.int32)
    for place, gradient in enumerate(gradients):
        if isinstance(gradient, tf.IndexedSlices):
            table[_SPARSE, place] = 1
            table[_WIDE, place] = gradient.indices.dtype == tf.int64
        elif gradient is not None:
            table[_DENSE, place] = 1
    with failures_as_of_ops("HorovodGroupedAllreduce"):
        counts = collectives.run_allreduce(
            table, np.empty_like(table), f"{stem}_kinds", Sum, 1.0, 1.0, settings.process_set
        )
    differ: list[int] = np.flatnonzero((counts[_DENSE] > 0) & (counts[_SPARSE] > 0)).tolist()
    if differ:
        names = ", ".join(str(getattr(variables[place], "name", place)) for place in differ)
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"The gradients of these variables are sparse on some ranks and dense on others: {names}. A "
            "sparse tensor travels as an ALLGATHER of its values, a dense one as an ALLREDUCE: ranks must "
            "agree on what is sparse; sparse_as_dense=True makes all gradients dense.",
        )
    places = np.flatnonzero(counts[_SPARSE]).tolist()
    slices = [
        _slices(gradients[place], own_variable(variables[place]), wide=bool(counts[_WIDE, place]))
        for place in places
    ]

    def reduce(groups: list[list[Any]]) -> list[list[Any]]:
        return [
            grouped_allreduce(
                group,
                device_sparse=settings.device_sparse,
                op=settings.op,
                process_set=settings.process_set,
                ignore_name_scope=stem == "grad",
                name=f"{stem}_{number}",
            )
            for number, group in enumerate(groups)
        ]

    chosen = [variables[place] for place in places]
    reduced = reduce_in_groups(slices, NoneCompressor, reduce, chosen, settings.groups, kind_of)
    return dict(zip(places, reduced, strict=True))


def _slices(gradient: Any, variable: Any, *, wide: bool) -> Any:
    """``gradient``, or no rows of ``variable`` if it is ``None``; with indices of 64 bits if ``wide``."""
    indices = tf.int64 if wide else tf.int32
    if gradient is not None:
        return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, indices), gradient.dense_shape)
    shape = tf.convert_to_tensor(variable).shape
    values = tf.zeros([0, *shape[1:]], variable.dtype)
    return tf.IndexedSlices(values, tf.zeros([0], indices), tf.constant(shape.as_list(), indices))
