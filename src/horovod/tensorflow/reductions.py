"""The reductions as scripts call them: sparse tensors, compression and devices around the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.collectives.forms import Adasum, Average, Sum, reduce_op
from horovod.errors import InvalidArgumentError
from horovod.gradients.groups import plan_groups
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.run_time import members
from horovod.tensorflow.util import raw

__all__ = [
    "allreduce",
    "check_num_rank_power_of_2",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "reducescatter",
]


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction that ``op``, or the deprecated ``average``, names.

    Raises:
        ValueError: both are given.
    """
    return reduce_op(op, average, stacklevel=4)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether Adasum can combine so many ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


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
    _check_world(process_set)
    _check_adasum(op, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            values = mpi_ops.allgather(tensor.values, _part(name, "values"), ignore_name_scope, process_set)
            indices = mpi_ops.allgather(
                tensor.indices, _part(name, "indices"), ignore_name_scope, process_set
            )
            return _slices(tensor, values, indices, op, process_set)
    with tf.device(device_dense):
        compressed, context = compression.compress(_dense(tensor))
        reduced = mpi_ops._allreduce(
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
    _check_world(process_set)
    _check_adasum(op, process_set)
    sparse = [index for index, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    results: list[Any] = [None] * len(tensors)
    if sparse:
        _check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            values = mpi_ops.grouped_allgather(
                [tensors[index].values for index in sparse],
                _part(name, "values"),
                ignore_name_scope,
                process_set,
            )
            indices = mpi_ops.grouped_allgather(
                [tensors[index].indices for index in sparse],
                _part(name, "indices"),
                ignore_name_scope,
                process_set,
            )
            for index, value, where in zip(sparse, values, indices, strict=True):
                results[index] = _slices(tensors[index], value, where, op, process_set)
    if dense:
        with tf.device(device_dense):
            reduced = _compressed(
                [tensors[index] for index in dense],
                compression,
                lambda group, number: mpi_ops._grouped_allreduce(
                    group,
                    name if name is None or number == 0 else f"{name}_{number}",
                    op,
                    prescale_factor,
                    postscale_factor,
                    ignore_name_scope,
                    process_set,
                ),
            )
            for index, value in zip(dense, reduced, strict=True):
                results[index] = value
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce ``tensor`` by Sum or Average and keep this member's share of the rows: member r of n gets
    ``d // n + (r < d % n)`` of d rows, after those of lower members.

    Raises:
        ValueError: before ``init()``; in a graph, a tensor without dimensions.
        tf.errors.InvalidArgumentError: in eager mode, a tensor without dimensions.
        tf.errors.AbortedError: another reduction.
    """
    _check_world(process_set)
    with tf.device(device_dense):
        compressed, context = compression.compress(_dense(tensor))
        reduced = mpi_ops._reducescatter(
            compressed, name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """:func:`reducescatter` of all ``tensors`` as one operation for each dtype that ``compression`` makes of
    them."""
    if not tensors:
        return list(tensors)
    _check_world(process_set)
    with tf.device(device_dense):
        return _compressed(
            tensors,
            compression,
            lambda group, _: mpi_ops._grouped_reducescatter(
                group,
                op=op,
                process_set=process_set,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
            ),
        )


def _compressed(
    tensors: Sequence[Any], compression: Any, reduce: Callable[[list[Any], int], Sequence[Any]]
) -> list[Any]:
    """Compress ``tensors``, ``reduce`` what is of one dtype then, with a number from 0, and decompress: an
    operation has one dtype, and a compressor may choose another for each tensor."""
    pairs = [compression.compress(_dense(tensor)) for tensor in tensors]
    results: list[Any] = [None] * len(pairs)
    for number, group in enumerate(plan_groups([compressed.dtype for compressed, _ in pairs])):
        reduced = reduce([pairs[position][0] for position in group], number)
        for position, value in zip(group, reduced, strict=True):
            results[position] = compression.decompress(value, pairs[position][1])
    return results


def _check_world(process_set: ProcessSet) -> None:
    """
    Raises:
        ValueError: there is no world, or no such set.
    """
    engine = lifecycle.current().engine
    number = process_set_id(process_set)
    if process_set is not global_process_set and number not in engine.process_sets():
        raise InvalidArgumentError(f"{process_set} does not exist (any more).")


def _dense(tensor: Any) -> Any:
    tensor = raw(tensor)
    return tensor if hasattr(tensor, "dtype") else tf.convert_to_tensor(tensor)


def _part(name: str | None, part: str) -> str | None:
    """Values and indices of one call need different names, if they have any."""
    return None if name is None and not tf.executing_eagerly() else f"{name or 'HorovodSparse'}_{part}"


def _slices(
    given: tf.IndexedSlices, values: Any, indices: Any, op: int, process_set: ProcessSet
) -> tf.IndexedSlices:
    if op == Average:
        values = values / tf.cast(members(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=given.dense_shape)


def _check_sparse(op: int, prescale: float, postscale: float) -> None:
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


def _check_adasum(op: int, process_set: ProcessSet) -> None:
    if op != Adasum:
        return
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support process sets other than the global one.")
    ranks = lifecycle.current().topology.size
    if not check_num_rank_power_of_2(ranks):
        raise NotImplementedError(f"Adasum needs a number of ranks that is a power of two, not {ranks}.")
