"""Allgather of TensorFlow's tensors (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Average
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.calls import call, call_grouped, define, other_rows, place, reduction
from horovod.tensorflow.native import ops

__all__ = ["allgather", "grouped_allgather"]


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate every member's ``tensor`` along the first dimension, whose length may differ between them,
    in the order of their ranks.

    Raises:
        ValueError: in a graph, a tensor without dimensions.
        tf.errors.FailedPreconditionError: the same in eager mode; ranks disagree about dtype or the other
            dimensions.
    """
    return call("Allgather", tensor, name, ignore_name_scope, process_set)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`allgather` of all ``tensors``, which are of one dtype, as one operation."""
    return call_grouped("Allgather", tensors, name, ignore_name_scope, process_set)


def _gradient(node: Any, upstreams: list[Any]) -> list[Any]:
    """The rows of the averaged upstream gradients that came from this member's tensors."""
    return [
        _own_rows(node, tensor, upstream) for tensor, upstream in zip(node.inputs, upstreams, strict=True)
    ]


def _own_rows(node: Any, tensor: Any, upstream: Any) -> Any:
    average = call("Allreduce", upstream, *place(node), **reduction(Average, 1.0, 1.0))
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    with tf.device("/cpu:0"):
        me = tf.cast(ops.horovod_rank(), tf.int64)
        mine = tf.reshape(tf.stack([me, rows]), [1, 2])
        everybody = call("Allgather", mine, *place(node))
        before = tf.reduce_sum(tf.where(everybody[:, 0] < me, everybody[:, 1], 0))
    return average[before : before + rows]


def _on_arrays(arrays: Sequence[Any], key: str | None, process_set: ProcessSet) -> Any:
    return collectives.run_grouped_allgather(arrays, key, process_set)


define("Allgather", _gradient, _on_arrays, other_rows)
