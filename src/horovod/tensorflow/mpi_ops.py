"""The collectives of ``horovod.tensorflow``, as ops: in eager mode, in ``tf.function`` and in graphs of
TensorFlow 1 with their sessions.

All raise TensorFlow's errors when they run: ``InvalidArgumentError`` for what is wrong on this rank alone (it
is not in the set, a root that does not exist, splits, a name in flight), ``FailedPreconditionError`` for what
ranks disagree about and before ``init()``, ``UnknownError`` when the world has failed or ended.

In a graph ranks recognise operations by the names of their nodes; in eager mode by ``name``, or else by the
order of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.common.util import check_extension, gpu_available
from horovod.errors import InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id
from horovod.tensorflow import gradients  # noqa: F401  (registers them)
from horovod.tensorflow.calls import call, call_grouped, reduction
from horovod.tensorflow.native import ops
from horovod.tensorflow.util import raw

__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "check_extension",
    "gpu_available",
    "grouped_allgather",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "shutdown",
    "size_op",
]
__all__ += everywhere.__all__

_basics = everywhere._basics
shutdown = _basics.shutdown


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``."""
    _basics.init(*args, **kwargs)


# -- reductions ---------------------------------------------------------------------------------------------


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = everywhere.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``tensor`` over the members: a tensor of the same shape and dtype."""
    where = process_set_id(process_set)
    how = reduction(op, prescale_factor, postscale_factor)
    return call("Allreduce", tensor, name, ignore_name_scope, where, **how)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = everywhere.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce all ``tensors``, which are of one dtype, as one operation."""
    where = process_set_id(process_set)
    how = reduction(op, prescale_factor, postscale_factor)
    return call_grouped("GroupedAllreduce", tensors, name, ignore_name_scope, where, **how)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = everywhere.Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce ``tensor`` and keep this member's share of the rows: member r of n gets ``d // n + (r < d % n)``
    of d rows."""
    where = process_set_id(process_set)
    how = reduction(op, prescale_factor, postscale_factor)
    return call("Reducescatter", tensor, name, ignore_name_scope, where, **how)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = everywhere.Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """:func:`_reducescatter` of all ``tensors``, which are of one dtype, as one operation."""
    where = process_set_id(process_set)
    how = reduction(op, prescale_factor, postscale_factor)
    return call_grouped("GroupedReducescatter", tensors, name, ignore_name_scope, where, **how)


# -- transfers ----------------------------------------------------------------------------------------------


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
    where = process_set_id(process_set)
    return call("Allgather", tensor, name, ignore_name_scope, where)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`allgather` of all ``tensors``, which are of one dtype, as one operation."""
    where = process_set_id(process_set)
    return call_grouped("GroupedAllgather", tensors, name, ignore_name_scope, where)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ``tensor`` of ``root_rank`` (a global rank), which has the same shape and dtype everywhere."""
    where = process_set_id(process_set)
    return call("Broadcast", tensor, name, ignore_name_scope, where, root_rank=root_rank)


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
    where = process_set_id(process_set)
    given = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits, tf.int32)
    output, received = call("Alltoall", tensor, name, ignore_name_scope, where, splits=given)
    return output if splits is None else (output, received)


# -- the world ----------------------------------------------------------------------------------------------


def join() -> Any:
    """This rank has no more data: wait until every rank has joined. An int32 scalar, the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros; averages divide by all ranks. All
    other collectives of the global set fail for the others.
    """
    return ops.horovod_join()


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
