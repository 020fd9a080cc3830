"""Broadcast of TensorFlow's tensors and variables (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.collectives.base import checked_root
from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Average
from horovod.errors import InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.calls import call, define, place, reduction, same_shapes
from horovod.tensorflow.native import ops
from horovod.tensorflow.util import raw

__all__ = ["broadcast", "broadcast_"]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ``tensor`` of ``root_rank`` (a global rank), which has the same shape and dtype everywhere."""
    return call("Broadcast", tensor, name, ignore_name_scope, process_set, root_rank=checked_root(root_rank))


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite ``variables`` with those of ``root_rank``: a list of tensors with their new values.

    The variables are recognised by their position: all ranks pass them in one order.

    Raises:
        ValueError: resource and reference variables are mixed.
    """
    variables = [raw(variable) for variable in variables]
    kinds = {hasattr(variable, "handle") for variable in variables}
    if len(kinds) > 1:
        raise InvalidArgumentError(
            "broadcast_ takes either resource variables or reference variables, not both in one call."
        )
    label = "HorovodBroadcastInplace" if name is None else name
    values = []
    for position, variable in enumerate(variables):
        value = tf.convert_to_tensor(variable)
        received = broadcast(value, root_rank, f"{label}_{position}", process_set=process_set)
        assigned = tf.compat.v1.assign(variable, received)
        values.append(tf.convert_to_tensor(assigned))
    return values


def _gradient(node: Any, upstreams: list[Any]) -> list[Any]:
    """The average of the upstream gradient on the root, zeros elsewhere."""
    average = call("Allreduce", upstreams[0], *place(node), **reduction(Average, 1.0, 1.0))
    at_root = tf.equal(ops.horovod_rank(), node.get_attr("root_rank"))
    return [tf.where(at_root, average, tf.zeros_like(average))]


def _on_arrays(arrays: Sequence[Any], key: str | None, process_set: ProcessSet, root_rank: int) -> Any:
    return [
        collectives.run_broadcast(each, np.empty_like(each), root_rank, key, process_set) for each in arrays
    ]


define("Broadcast", _gradient, _on_arrays, same_shapes, grouped=False)
