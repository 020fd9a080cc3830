"""Gradients of the collectives. The backward pass of a collective is itself a collective of the same ranks.

Written over the numbers of the forward op, as they are in its node: the objects of Python that it was called
with may be gone.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.collectives.forms import Average, Sum
from horovod.tensorflow.calls import call, call_grouped, reduction
from horovod.tensorflow.native import ops, problem

__all__ = [
    "allgather_gradient",
    "allreduce_gradient",
    "alltoall_gradient",
    "broadcast_gradient",
    "grouped_allreduce_gradient",
    "reducescatter_gradient",
]


def allreduce_gradient(
    upstream: Any, op: int, prescale: float, postscale: float, process_set: int, ignore_scope: bool
) -> Any:
    """The same reduction of ``upstream``: of a sum the sum, of an average the average."""
    how = reduction(op, prescale, postscale)
    return call("Allreduce", upstream, None, ignore_scope, process_set, **how)


def grouped_allreduce_gradient(
    upstreams: list[Any], op: int, prescale: float, postscale: float, process_set: int, ignore_scope: bool
) -> list[Any]:
    """As one operation; unless TensorFlow made some of another dtype (zeros for results nobody used)."""
    if len({upstream.dtype for upstream in upstreams}) > 1:
        return [
            allreduce_gradient(upstream, op, prescale, postscale, process_set, ignore_scope)
            for upstream in upstreams
        ]
    how = reduction(op, prescale, postscale)
    return call_grouped("GroupedAllreduce", upstreams, None, ignore_scope, process_set, **how)


def allgather_gradient(tensor: Any, upstream: Any, process_set: int, ignore_scope: bool) -> Any:
    """The rows of the averaged ``upstream`` that came from this member's ``tensor``."""
    reduced = allreduce_gradient(upstream, Average, 1.0, 1.0, process_set, ignore_scope)
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    with tf.device("/cpu:0"):
        me = tf.cast(ops.horovod_rank(), tf.int64)
        mine = tf.reshape(tf.stack([me, rows]), [1, 2])
        everybody = call("Allgather", mine, None, ignore_scope, process_set)
        before = tf.reduce_sum(tf.where(everybody[:, 0] < me, everybody[:, 1], 0))
    return reduced[before : before + rows]


def broadcast_gradient(upstream: Any, root_rank: int, process_set: int, ignore_scope: bool) -> Any:
    """The average of ``upstream`` on the root, zeros elsewhere."""
    reduced = allreduce_gradient(upstream, Average, 1.0, 1.0, process_set, ignore_scope)
    at_root = tf.equal(ops.horovod_rank(), root_rank)
    return tf.where(at_root, reduced, tf.zeros_like(reduced))


def alltoall_gradient(tensor: Any, upstream: Any, received: Any, process_set: int, ignore_scope: bool) -> Any:
    """``upstream`` sent back to where its rows came from; zeros for rows of ``tensor`` that were not sent."""
    back, _ = call("Alltoall", upstream, None, ignore_scope, process_set, splits=received)
    kept = tf.shape(tensor)[0] - tf.shape(back)[0]
    rank = tf.rank(back)
    return tf.pad(back, tf.concat([[[0, kept]], tf.zeros([rank - 1, 2], tf.int32)], axis=0))


def reducescatter_gradient(
    upstream: Any, op: int, prescale: float, postscale: float, process_set: int, ignore_scope: bool
) -> Any:
    """Everybody's ``upstream``, one after the other; of a sum times the number of members."""
    factor = tf.cast(prescale * postscale, upstream.dtype)
    if op == Sum:
        factor *= tf.cast(ops.horovod_size(process_set_id=process_set), upstream.dtype)
    scaled = upstream * factor
    return call("Allgather", scaled, None, ignore_scope, process_set)


# -- the ops of the glue ------------------------------------------------------------------------------------


def _reduction(op: Any) -> tuple[int, float, float, int, bool]:
    return (
        op.get_attr("reduce_op"),
        op.get_attr("prescale_factor"),
        op.get_attr("postscale_factor"),
        *_place(op),
    )


def _place(op: Any) -> tuple[int, bool]:
    return op.get_attr("process_set_id"), op.get_attr("ignore_name_scope")


@tf.RegisterGradient("HorovodAllreduce")  # type: ignore[untyped-decorator]
def _of_allreduce(op: Any, upstream: Any) -> Any:
    return allreduce_gradient(upstream, *_reduction(op))


@tf.RegisterGradient("HorovodGroupedAllreduce")  # type: ignore[untyped-decorator]
def _of_grouped_allreduce(op: Any, *upstreams: Any) -> Any:
    return grouped_allreduce_gradient(list(upstreams), *_reduction(op))


@tf.RegisterGradient("HorovodAllgather")  # type: ignore[untyped-decorator]
def _of_allgather(op: Any, upstream: Any) -> Any:
    return allgather_gradient(op.inputs[0], upstream, *_place(op))


@tf.RegisterGradient("HorovodGroupedAllgather")  # type: ignore[untyped-decorator]
def _of_grouped_allgather(op: Any, *upstreams: Any) -> Any:
    return [
        allgather_gradient(tensor, upstream, *_place(op))
        for tensor, upstream in zip(op.inputs, upstreams, strict=True)
    ]


@tf.RegisterGradient("HorovodBroadcast")  # type: ignore[untyped-decorator]
def _of_broadcast(op: Any, upstream: Any) -> Any:
    return broadcast_gradient(upstream, op.get_attr("root_rank"), *_place(op))


@tf.RegisterGradient("HorovodAlltoall")  # type: ignore[untyped-decorator]
def _of_alltoall(op: Any, upstream: Any, _: Any) -> Any:
    return [alltoall_gradient(op.inputs[0], upstream, op.outputs[1], *_place(op)), None]


@tf.RegisterGradient("HorovodReducescatter")  # type: ignore[untyped-decorator]
def _of_reducescatter(op: Any, upstream: Any) -> Any:
    return reducescatter_gradient(upstream, *_reduction(op))


@tf.RegisterGradient("HorovodGroupedReducescatter")  # type: ignore[untyped-decorator]
def _of_grouped_reducescatter(op: Any, *upstreams: Any) -> Any:
    return [reducescatter_gradient(upstream, *_reduction(op)) for upstream in upstreams]


for _type in ("Join", "Size", "ProcessSetIncluded", "LocalSize", "Rank", "LocalRank"):
    tf.no_gradient(f"Horovod{_type}")

if problem:  # the ops of the fall-back are differentiated by functions
    ops.gradients.update(
        grouped_allreduce=grouped_allreduce_gradient,
        allgather=allgather_gradient,
        broadcast=broadcast_gradient,
        alltoall=alltoall_gradient,
        reducescatter=reducescatter_gradient,
    )
