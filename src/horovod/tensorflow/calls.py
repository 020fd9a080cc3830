"""Calls of the collectives, with what ranks recognise them by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from horovod.tensorflow.names import identity
from horovod.tensorflow.native import ops
from horovod.tensorflow.util import raw

__all__ = ["call", "call_grouped", "reduction"]

_OF_ONE: Final[dict[str, Callable[..., Any]]] = {
    "Allreduce": ops.horovod_allreduce,
    "Allgather": ops.horovod_allgather,
    "Broadcast": ops.horovod_broadcast,
    "Reducescatter": ops.horovod_reducescatter,
    "Alltoall": ops.horovod_alltoall,
}
_OF_GROUP: Final[dict[str, Callable[..., Any]]] = {
    "GroupedAllreduce": ops.horovod_grouped_allreduce,
    "GroupedAllgather": ops.horovod_grouped_allgather,
    "GroupedReducescatter": ops.horovod_grouped_reducescatter,
}


def call(
    kind: str, tensor: Any, name: str | None, ignore_name_scope: bool, process_set_id: int, **how: Any
) -> Any:
    """What the op of that kind (``"Allreduce"``) makes of ``tensor``.

    Args:
        name: see :func:`horovod.tensorflow.names.identity`, as for the next two.
        how: the arguments that only this kind has.
    """
    tensor = raw(tensor)
    who = identity(kind, name, [tensor], ignore_name_scope, process_set_id)
    return _OF_ONE[kind](tensor=tensor, **how, **who)


def call_grouped(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    ignore_name_scope: bool,
    process_set_id: int,
    **how: Any,
) -> list[Any]:
    """:func:`call` of a group (``"GroupedAllreduce"``): all ``tensors``, of one dtype, as one operation."""
    if not tensors:
        return []
    tensors = [raw(tensor) for tensor in tensors]
    who = identity(kind, name, tensors, ignore_name_scope, process_set_id)
    return list(_OF_GROUP[kind](tensors=tensors, **how, **who))


def reduction(op: int, prescale: float, postscale: float) -> dict[str, Any]:
    """The arguments that only reductions have."""
    return {"reduce_op": op, "prescale_factor": prescale, "postscale_factor": postscale}
