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

from horovod.collectives import Adasum, Average, Max, Min, Product, Sum
from horovod.common.basics import HorovodBasics
from horovod.common.util import check_extension, gpu_available
from horovod.errors import InvalidArgumentError
from horovod.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_id,
    remove_process_set,
)
from horovod.tensorflow import gradients  # noqa: F401  (registers them)
from horovod.tensorflow.names import identity
from horovod.tensorflow.native import ops
from horovod.tensorflow.util import raw

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_extension",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_basics = HorovodBasics(__file__)

shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``."""
    _basics.init(*args, **kwargs)


# -- reductions ---------------------------------------------------------------------------------------------


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``tensor`` over the members: a tensor of the same shape and dtype."""
    tensor = raw(tensor)
    who = identity("Allreduce", name, [tensor], ignore_name_scope, process_set_id(process_set))
    return ops.horovod_allreduce(
        tensor=tensor,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        **who,
    )


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce all ``tensors``, which are of one dtype, as one operation."""
    tensors = [raw(tensor) for tensor in tensors]
    if not tensors:
        return []
    who = identity("GroupedAllreduce", name, tensors, ignore_name_scope, process_set_id(process_set))
    return list(
        ops.horovod_grouped_allreduce(
            tensors=tensors,
            reduce_op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            **who,
        )
    )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce ``tensor`` and keep this member's share of the rows: member r of n gets ``d // n + (r < d % n)``
    of d rows."""
    tensor = raw(tensor)
    who = identity("Reducescatter", name, [tensor], ignore_name_scope, process_set_id(process_set))
    return ops.horovod_reducescatter(
        tensor=tensor,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        **who,
    )


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """:func:`_reducescatter` of all ``tensors``, which are of one dtype, as one operation."""
    tensors = [raw(tensor) for tensor in tensors]
    if not tensors:
        return []
    who = identity(
        "GroupedReducescatter",
        name,
        [tensors[0], tensors[-1]],
        ignore_name_scope,
        process_set_id(process_set),
    )
    return list(
        ops.horovod_grouped_reducescatter(
            tensors=tensors,
            reduce_op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            **who,
        )
    )


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
    tensor = raw(tensor)
    who = identity("Allgather", name, [tensor], ignore_name_scope, process_set_id(process_set))
    return ops.horovod_allgather(
        tensor=tensor,
        **who,
    )


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`allgather` of all ``tensors``, which are of one dtype, as one operation."""
    tensors = [raw(tensor) for tensor in tensors]
    if not tensors:
        return []
    who = identity("GroupedAllgather", name, tensors, ignore_name_scope, process_set_id(process_set))
    return list(
        ops.horovod_grouped_allgather(
            tensors=tensors,
            **who,
        )
    )


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ``tensor`` of ``root_rank`` (a global rank), which has the same shape and dtype everywhere."""
    tensor = raw(tensor)
    who = identity("Broadcast", name, [tensor], ignore_name_scope, process_set_id(process_set))
    return ops.horovod_broadcast(
        tensor=tensor,
        root_rank=root_rank,
        **who,
    )


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
    tensor = raw(tensor)
    who = identity("Alltoall", name, [tensor], ignore_name_scope, process_set_id(process_set))
    given = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits, tf.int32)
    output, received = ops.horovod_alltoall(
        tensor=tensor,
        splits=given,
        **who,
    )
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
