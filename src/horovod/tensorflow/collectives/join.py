"""Join of ``horovod.tensorflow``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.gradients.replicas import rewind
from horovod.runtime import lifecycle
from horovod.tensorflow.native import ops

__all__ = ["join"]


def join() -> Any:
    """This rank has no more data: wait until every rank has joined. An int32 scalar, the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros; averages divide by all ranks. All
    other collectives of the global set fail for the others.
    """
    last = ops.horovod_join()
    if tf.executing_eagerly():
        _note()
        return last
    with tf.control_dependencies([tf.numpy_function(lambda _: _note(), [last], [])]):
        return tf.identity(last)


def _note() -> None:
    lifecycle.current().joins.count += 1
    rewind()
