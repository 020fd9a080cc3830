"""Broadcasts of variables and Python objects, so that all ranks start equal; a hook for TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.collectives import numpy_frontend, objects
from horovod.collectives.base import checked_root
from horovod.gradients.replicas import broadcasts, references
from horovod.gradients.variables import kept_apart
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.mpi_ops import broadcast, broadcast_
from horovod.tensorflow.util import raw

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite ``variables`` with those of ``root_rank``.

    Args:
        variables: of TensorFlow or of Keras, in the same order on all ranks: variables at the same position
            belong together. The sums of ``backward_passes_per_step`` stay those of each rank.
        inplace: accepted; the variables are overwritten either way.

    Returns:
        None in eager mode, where it has happened. In a graph an op that does it.

    Raises:
        ValueError: ``root_rank`` is no number of a rank.
    """
    root_rank = checked_root(root_rank)
    broadcasts.note(references(variables))
    plain = [raw(variable) for variable in variables if not kept_apart(variable)]
    if inplace and not tf.executing_eagerly():
        return tf.group(*broadcast_(plain, root_rank, "broadcast_variables", process_set))
    if not tf.executing_eagerly():
        return _broadcast(plain, root_rank, process_set)

    # One function, so that all of them are on their way together.
    @tf.function  # type: ignore[untyped-decorator]
    def run() -> None:
        _broadcast(plain, root_rank, process_set)

    if plain:
        run()
    return None


def _broadcast(variables: list[Any], root_rank: int, process_set: ProcessSet) -> Any:
    return tf.group(
        *(
            tf.compat.v1.assign(
                variable,
                broadcast(
                    tf.convert_to_tensor(variable),
                    root_rank,
                    f"HorovodBroadcast_variable_{position}",
                    process_set=process_set,
                ),
            )
            for position, variable in enumerate(variables)
        )
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """An op that overwrites the global variables of a graph of TensorFlow 1 with those of ``root_rank``.

    Raises:
        RuntimeError: eager mode has no collection of global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ``obj`` of ``root_rank``: itself there, a copy elsewhere, where ``obj`` may be anything.

    Args:
        session: accepted; objects do not go through the graph.

    Raises:
        ValueError: before ``init()``.
        HorovodInternalError: the world failed.
    """
    return objects.broadcast_object(numpy_frontend.collectives, obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of ``obj`` that does :func:`broadcast_object`; it may be called any number of times."""

    def bcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return bcast


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every member's ``obj``, in the order of their ranks.

    Args:
        session: accepted; objects do not go through the graph.
    """
    return objects.allgather_object(numpy_frontend.collectives, obj, name, process_set)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Overwrites the global variables of all ranks with those of ``root_rank`` when a session begins, after
    they were initialised or restored.

    Args:
        root_rank: a global rank.
        device: where the ops are placed, as in ``tf.device``.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Build the op, once for each graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)
