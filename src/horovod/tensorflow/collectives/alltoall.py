"""Alltoall of TensorFlow's tensors (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.collectives.numpy_frontend import collectives
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.calls import call, define, other_rows, place

__all__ = ["alltoall"]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send consecutive rows of ``tensor`` to the members.

    Args:
        splits: int32, one number of rows for each member; their sum may be less than the number of rows, the
            others stay. None: equally many for each.

    Returns:
        The rows that came, in the order of senders. With ``splits`` a pair of them and an int32 tensor of
        their numbers.

    Raises:
        tf.errors.InvalidArgumentError: the rows cannot be split like that.
    """
    given = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits, tf.int32)
    output, received = call("Alltoall", tensor, name, ignore_name_scope, process_set, splits=given)
    return output if splits is None else (output, received)


def _gradient(node: Any, upstreams: list[Any]) -> list[Any]:
    """The upstream gradient sent back to where its rows came from; zeros for rows that were not sent."""
    back, _ = call("Alltoall", upstreams[0], *place(node), splits=node.outputs[1])
    kept = tf.shape(node.inputs[0])[0] - tf.shape(back)[0]
    others = tf.zeros([tf.rank(back) - 1, 2], tf.int32)
    return [tf.pad(back, tf.concat([[[0, kept]], others], axis=0)), None]


def _on_arrays(arrays: Sequence[Any], key: str | None, process_set: ProcessSet) -> Any:
    tensor, splits = arrays
    return collectives.run_alltoall(tensor, splits.tolist(), key, process_set)


def _outputs(inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [*other_rows(inputs[:1]), (tf.int32, [None])]


define("Alltoall", _gradient, _on_arrays, _outputs, grouped=False, inputs=("tensor", "splits"))
