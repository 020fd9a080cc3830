"""Reduce of TensorFlow's tensors to one rank (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.collectives.base import checked_root
from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Average
from horovod.gradients.reduction import reduce_in_groups
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.calls import (
    call,
    call_grouped,
    check_world,
    define,
    dense,
    place,
    reduction,
    same_shapes,
)
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.native import ops

__all__ = ["grouped_reduce", "reduce"]


def reduce(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of all members' ``tensor`` on ``root_rank`` (a global rank); elsewhere ``tensor``.

    Args:
        tensor: tensor, variable, array or number, of the same shape and dtype everywhere.
        op: Average, Sum, Min, Max or Product.
        prescale_factor, postscale_factor: factors before and after the reduction; rounded to float32.

    Raises:
        ValueError: before ``init()``; the set does not exist; ``op`` is no reduction; ``root_rank`` is no
            number of a rank.
        tf.errors.InvalidArgumentError: the root is no member.
        tf.errors.AbortedError: ``op`` is Adasum.
    """
    check_world(process_set)
    how = reduction(op, prescale_factor, postscale_factor) | {"root_rank": checked_root(root_rank)}
    return call("Reduce", dense(tensor), name, ignore_name_scope, process_set, **how)


def grouped_reduce(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`reduce` of all ``tensors`` as one operation for each dtype."""
    check_world(process_set)
    how = reduction(op, prescale_factor, postscale_factor) | {"root_rank": checked_root(root_rank)}

    def reduce_groups(groups: list[list[Any]]) -> list[list[Any]]:
        return [
            call_grouped(
                "Reduce",
                group,
                name if name is None or number == 0 else f"{name}_{number}",
                ignore_name_scope,
                process_set,
                **how,
            )
            for number, group in enumerate(groups)
        ]

    return reduce_in_groups([dense(tensor) for tensor in tensors], Compression.none, reduce_groups)


def _gradient(node: Any, upstreams: list[Any]) -> list[Any]:
    """The root's gradient times what one input counts for in the result; elsewhere besides the own one."""
    _, _, number = place(node)
    factor = node.get_attr("prescale_factor") * node.get_attr("postscale_factor")
    at_root = tf.equal(ops.horovod_rank(), node.get_attr("root_rank"))
    gradients = []
    for upstream in upstreams:
        share = tf.cast(factor, upstream.dtype)
        if node.get_attr("reduce_op") == Average:
            share /= tf.cast(ops.horovod_size(process_set_id=number), upstream.dtype)
        came = call("Broadcast", upstream, *place(node), root_rank=node.get_attr("root_rank"))
        gradients.append(came * share + tf.where(at_root, tf.zeros_like(upstream), upstream))
    return gradients


def _on_arrays(
    arrays: Sequence[Any],
    key: str | None,
    process_set: ProcessSet,
    reduce_op: int,
    prescale_factor: float,
    postscale_factor: float,
    root_rank: int,
) -> Any:
    outs = [np.empty_like(array) for array in arrays]
    return collectives.run_grouped_reduce(
        arrays, outs, root_rank, key, reduce_op, prescale_factor, postscale_factor, process_set
    )


define("Reduce", _gradient, _on_arrays, same_shapes)
