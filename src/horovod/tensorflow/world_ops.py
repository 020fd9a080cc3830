"""Questions of a graph to the world when it runs: an elastic world may have changed since it was built."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, member_count, process_set_id
from horovod.tensorflow.native import ops

# What `mpi_ops` republishes.
__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Number of ranks of a process set when the op runs, an int32 scalar; -3 if there is no such set."""
    return ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set when the op runs, 0 if not, -3 if there is no such set."""
    return ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> Any:
    """Number of ranks on this host when the op runs, an int32 scalar."""
    return ops.horovod_local_size(name=name)


def rank_op(name: str | None = None) -> Any:
    """This rank when the op runs, an int32 scalar."""
    return ops.horovod_rank(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """This rank among those of its host when the op runs, an int32 scalar."""
    return ops.horovod_local_rank(name=name)


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
