"""Allreduce of TensorFlow's tensors: as ops, and as scripts call it, with sparse tensors, compression and
devices around them (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.collectives.allreduce import check_adasum
from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Adasum, Average, Sum, checked_op, reduce_op
from horovod.common.util import num_rank_is_power_2
from horovod.gradients.compression import checked_compressor
from horovod.gradients.reduction import reduce_some
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.calls import (
    call,
    call_grouped,
    check_world,
    define,
    dense,
    place,
    reduction,
    reduction_of,
    same_shapes,
)
from horovod.tensorflow.collectives.allgather import allgather, grouped_allgather
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.fallback import failures_as_of_ops
from horovod.tensorflow.world_ops import members

__all__ = [
    "allreduce",
    "check_num_rank_power_of_2",
    "grouped_allreduce",
    "handle_average_backwards_compatibility",
]


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction that ``op``, or the deprecated ``average``, names.

    Raises:
        ValueError: both are given.
    """
    return reduce_op(op, average)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether Adasum can combine so many ranks."""
    return num_rank_is_power_2(num_rank)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce ``tensor`` over the members of ``process_set``.

    Args:
        tensor: tensor, variable, array or number; or ``tf.IndexedSlices``, whose rows and indices are
            gathered (duplicates stay), for Sum and Average without factors.
        average: deprecated: ``True`` is ``op=Average``, ``False`` is ``op=Sum``.
        device_dense, device_sparse: where the op of a tensor and of slices is placed, as in ``tf.device``.
        compression: of a dense tensor on its way, see ``horovod.tensorflow.compression``.
        op: Average (the default), Sum, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: factors before and after the reduction; rounded to float32.
        name: identity across ranks.

    Returns:
        A tensor of the same shape and dtype; of slices ``tf.IndexedSlices``.

    Raises:
        ValueError: before ``init()``; ``op`` and ``average``; the set does not exist.
        NotImplementedError: slices with another reduction or with factors; Adasum in a set of its own, or of
            a number of ranks that is no power of two.
        tf.errors.OpError: see ``horovod.tensorflow.mpi_ops``.
    """
    op = handle_average_backwards_compatibility(op, average)
    check_world(process_set)
    if op == Adasum:
        check_adasum(process_set)
    if isinstance(tensor, tf.IndexedSlices):
        check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            values = allgather(tensor.values, _part(name, "values"), ignore_name_scope, process_set)
            indices = allgather(tensor.indices, _part(name, "indices"), ignore_name_scope, process_set)
            return _slices(tensor, values, indices, op, process_set)
    with tf.device(device_dense):
        compressed, context = checked_compressor(compression).compress(dense(tensor))
        reduced = _allreduce(
            compressed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """:func:`allreduce` of all ``tensors`` as one operation: a list in their order.

    Dense ones are one operation for each dtype that ``compression`` makes of them. Slices among them are
    gathered, by two operations for all of them.
    """
    if not tensors:
        return list(tensors)
    op = handle_average_backwards_compatibility(op, average)
    check_world(process_set)
    if op == Adasum:
        check_adasum(process_set)
    sparse = [index for index, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    others = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    results: list[Any] = [None] * len(tensors)
    if sparse:
        check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            values = grouped_allgather(
                [tensors[index].values for index in sparse],
                _part(name, "values"),
                ignore_name_scope,
                process_set,
            )
            indices = grouped_allgather(
                [tensors[index].indices for index in sparse],
                _part(name, "indices"),
                ignore_name_scope,
                process_set,
            )
            for index, value, where in zip(sparse, values, indices, strict=True):
                results[index] = _slices(tensors[index], value, where, op, process_set)
    if others:
        reduced = reduce_dense(
            [dense(tensors[index]) for index in others],
            (),
            device_dense,
            compression,
            name,
            op,
            prescale_factor,
            postscale_factor,
            ignore_name_scope,
            process_set,
        )
        for index, value in zip(others, reduced, strict=True):
            results[index] = value
    return results


def reduce_dense(
    tensors: Sequence[Any],
    absent: Collection[int],
    device: str,
    compression: Any,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    ignore_name_scope: bool,
    process_set: ProcessSet,
    marks: list[Any] | None = None,
) -> list[Any]:
    """:func:`grouped_allreduce` of dense ``tensors``.

    Args:
        absent: places of which this rank brings nothing: there are zeros. For eager code.
        marks: a number that travels with the first floating tensors, as it is, and becomes the result.

    Returns:
        The results in the order of ``tensors``; ``None`` for what no rank has brought.
    """

    def reduce(groups: list[list[Any]], missing: list[list[int]]) -> list[list[Any]]:
        results = []
        marked = next(
            (n for n, group in enumerate(groups) if marks and tf.as_dtype(group[0].dtype).is_floating), None
        )
        for number, (group, places) in enumerate(zip(groups, missing, strict=True)):
            if number == marked:
                assert marks is not None
                group = [*group, tf.constant(marks.pop(), group[0].dtype)]
            how = (
                name if name is None or number == 0 else f"{name}_{number}",
                op,
                prescale_factor,
                postscale_factor,
                ignore_name_scope,
                process_set,
            )
            # All ranks see one operation, whichever way they take: the op works on memory of the host, too.
            results.append(
                _reduce_without(group, places, *how) if places else _grouped_allreduce(group, *how)
            )
            if number == marked:
                assert marks is not None
                marks.append(results[-1].pop())
        return results

    with tf.device(device):
        return reduce_some(tensors, absent, compression, reduce, kind=lambda each: tf.as_dtype(each.dtype))


def _reduce_without(
    tensors: Sequence[Any],
    absent: Collection[int],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[Any]:
    """:func:`_grouped_allreduce`, at once, where this rank brings nothing at the places ``absent``; ``None``
    for what no rank brings."""
    key = name.rpartition("/")[2] if name and ignore_name_scope else name
    # Memory of TensorFlow must not be written to, and what is absent is reduced in place.
    outs = [np.zeros(tensor.shape, tf.as_dtype(tensor.dtype).as_numpy_dtype) for tensor in tensors]
    given = [
        out if place in absent else np.asarray(tf.convert_to_tensor(tensor).numpy(), order="C")
        for place, (tensor, out) in enumerate(zip(tensors, outs, strict=True))
    ]
    factors = _rounded(prescale_factor), _rounded(postscale_factor)
    with failures_as_of_ops("HorovodGroupedAllreduce"):
        handle = collectives.grouped_allreduce(
            given, outs, key, checked_op(op), *factors, process_set, absent=absent
        )
        nobody = {place for _, place in collectives.synchronize_all([handle])}
    return [None if place in nobody else tf.convert_to_tensor(out) for place, out in enumerate(outs)]


# -- the ops ------------------------------------------------------------------------------------------------


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``tensor`` over the members: a tensor of the same shape and dtype."""
    how = reduction(op, prescale_factor, postscale_factor)
    return call("Allreduce", tensor, name, ignore_name_scope, process_set, **how)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce all ``tensors``, which are of one dtype, as one operation."""
    how = reduction(op, prescale_factor, postscale_factor)
    return call_grouped("Allreduce", tensors, name, ignore_name_scope, process_set, **how)


def _gradient(node: Any, upstreams: list[Any]) -> list[Any]:
    """The same reduction of the upstream gradients: of a sum the sum, of an average the average. A group as
    one operation; unless TensorFlow made some of another dtype (zeros for results nobody used)."""
    how = reduction_of(node)
    if len(upstreams) > 1 and len({upstream.dtype for upstream in upstreams}) == 1:
        return call_grouped("Allreduce", upstreams, *place(node), **how)
    return [call("Allreduce", upstream, *place(node), **how) for upstream in upstreams]


def _on_arrays(
    arrays: Sequence[Any],
    key: str | None,
    process_set: ProcessSet,
    reduce_op: int,
    prescale_factor: float,
    postscale_factor: float,
) -> Any:
    outs = [np.empty_like(array) for array in arrays]
    factors = _rounded(prescale_factor), _rounded(postscale_factor)
    return collectives.run_grouped_allreduce(arrays, outs, key, reduce_op, *factors, process_set)


def _rounded(factor: float) -> float:
    """``factor`` as an attribute of an op has it: ranks must agree, whichever way they take."""
    return float(np.float32(factor))


define("Allreduce", _gradient, _on_arrays, same_shapes)

# -- sparse tensors -----------------------------------------------------------------------------------------


def _part(name: str | None, part: str) -> str | None:
    """Values and indices of one call need different names, if they have any."""
    return None if name is None and not tf.executing_eagerly() else f"{name or 'HorovodSparse'}_{part}"


def _slices(
    given: tf.IndexedSlices, values: Any, indices: Any, op: int, process_set: ProcessSet
) -> tf.IndexedSlices:
    if op == Average:
        divide = tf.truncatediv if values.dtype.is_integer else tf.divide
        values = divide(values, tf.cast(members(process_set), values.dtype))
    return tf.IndexedSlices(values, indices, dense_shape=given.dense_shape)


def check_sparse(op: int, prescale: float, postscale: float) -> None:
    """Refuse reductions of slices that do not exist.

    Raises:
        NotImplementedError: another one than Sum and Average, or factors.
    """
    if op not in (Sum, Average):
        raise NotImplementedError(
            "tf.IndexedSlices can be reduced by Sum and Average only; pass sparse_as_dense=True, or "
            "tf.convert_to_tensor(slices)."
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor (and gradient_predivide_factor) are not supported for "
            "tf.IndexedSlices; pass sparse_as_dense=True, or tf.convert_to_tensor(slices)."
        )
