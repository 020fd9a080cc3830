"""Reducescatter of TensorFlow's tensors (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Average, Sum
from horovod.gradients.compression import checked_compressor
from horovod.gradients.reduction import reduce_in_groups
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.calls import (
    call,
    call_grouped,
    check_world,
    define,
    dense,
    other_rows,
    place,
    reduction,
)
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.native import ops

__all__ = ["grouped_reducescatter", "reducescatter"]


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
    check_world(process_set)
    with tf.device(device_dense):
        compressed, context = checked_compressor(compression).compress(dense(tensor))
        reduced = _reducescatter(
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
    check_world(process_set)
    with tf.device(device_dense):
        return reduce_in_groups(
            [dense(tensor) for tensor in tensors],
            compression,
            lambda groups: [
                _grouped_reducescatter(
                    group,
                    op=op,
                    process_set=process_set,
                    prescale_factor=prescale_factor,
                    postscale_factor=postscale_factor,
                )
                for group in groups
            ],
        )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce ``tensor`` and keep this member's share of the rows: member r of n gets ``d // n + (r < d % n)``
    of d rows."""
    how = reduction(op, prescale_factor, postscale_factor)
    return call("Reducescatter", tensor, name, ignore_name_scope, process_set, **how)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """:func:`_reducescatter` of all ``tensors``, which are of one dtype, as one operation."""
    how = reduction(op, prescale_factor, postscale_factor)
    return call_grouped("Reducescatter", tensors, name, ignore_name_scope, process_set, **how)


def _gradient(node: Any, upstreams: list[Any]) -> list[Any]:
    """Everybody's upstream gradients, one after the other; of a sum times the number of members."""
    factor = node.get_attr("prescale_factor") * node.get_attr("postscale_factor")
    own = []
    for upstream in upstreams:
        scale = tf.cast(factor, upstream.dtype)
        if node.get_attr("reduce_op") == Sum:
            members = ops.horovod_size(process_set_id=node.get_attr("process_set_id"))
            scale *= tf.cast(members, upstream.dtype)
        own.append(call("Allgather", upstream * scale, *place(node)))
    return own


def _on_arrays(
    arrays: Sequence[Any],
    key: str | None,
    process_set: ProcessSet,
    reduce_op: int,
    prescale_factor: float,
    postscale_factor: float,
) -> Any:
    how = reduce_op, prescale_factor, postscale_factor, process_set
    return collectives.run_grouped_reducescatter(arrays, key, *how)


define("Reducescatter", _gradient, _on_arrays, other_rows)
