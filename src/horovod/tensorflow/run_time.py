"""Questions of a graph to the world when it runs: an elastic world may have changed since it was built."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, member_count, process_set_id
from horovod.tensorflow.world_ops import process_set_included_op, size_op

__all__ = ["decides_at_run_time", "exchanges", "members"]


def decides_at_run_time() -> bool:
    """Return whether a graph is being built that may outlive the number of ranks (``HOROVOD_ELASTIC``).

    Raises:
        ValueError: ``init()`` has not been called.
    """
    return lifecycle.current().config.elastic and not tf.executing_eagerly()


def members(process_set: ProcessSet) -> Any:
    """Number of ranks in the set: an int; an int32 scalar in host memory if it is decided at run time."""
    if not decides_at_run_time():
        return member_count(process_set)
    with tf.device("/cpu:0"):
        return size_op(process_set_id(process_set))


def exchanges(process_set: ProcessSet) -> Any:
    """Make a bool scalar in host memory: true if this process is in the set and not alone there when the
    graph runs.
    """
    with tf.device("/cpu:0"):
        number = process_set_id(process_set)
        included = tf.equal(process_set_included_op(number), 1)
        return tf.logical_and(included, tf.greater(size_op(number), 1))
