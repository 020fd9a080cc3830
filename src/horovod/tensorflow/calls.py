"""Operations of collectives: their gradients, the names by which ranks recognise them, and calls of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

from horovod.collectives.ops import checked_op
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id
from horovod.tensorflow import native
from horovod.tensorflow.util import raw

__all__ = [
    "call",
    "call_grouped",
    "check_world",
    "define",
    "dense",
    "identity",
    "normalize",
    "other_rows",
    "place",
    "reduction",
    "reduction_of",
    "same_shapes",
]

_NODE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*\Z")


def normalize(name: str) -> str:
    """``name`` with everything but ASCII letters, digits and underscores replaced by underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def identity(
    kind: str, name: str | None, tensors: Sequence[Any], ignore_name_scope: bool, process_set_id: int
) -> dict[str, Any]:
    """The arguments by which ranks recognise an op of a kind (``"Allreduce"``) on ``tensors``: ``name``,
    ``tensor_name``, ``ignore_name_scope`` and ``process_set_id``, for the generated function.

    In a graph the identity across ranks is the node's name, with the scopes around it. The kernel of an eager
    op sees no name, so a given name becomes an attribute; without one the order of calls decides. No call
    makes a new string, as TensorFlow keeps a kernel for each.
    """
    node: str | None = None
    key = ""
    if tf.executing_eagerly():
        key = name or ""
    elif name is None:
        ends = (tensors[0], tensors[-1]) if kind.startswith("Grouped") else tensors
        parts = [normalize(_name_in_graph(tensor)) for tensor in ends]
        node = "_".join([f"Horovod{kind}", *parts])
    elif _NODE.match(name):
        node = name
    else:
        node = normalize(name).lstrip("_") or f"Horovod{kind}"
        key = name
    return {
        "name": node,
        "tensor_name": key,
        "ignore_name_scope": ignore_name_scope,
        "process_set_id": process_set_id,
    }


def _name_in_graph(tensor: Any) -> str:
    try:
        return str(tensor.name)
    except (AttributeError, ValueError):  # an eager constant in a graph, an array
        return "constant"


_functions: Final[dict[str, Callable[..., Any]]] = {}


def define(
    kind: str,
    gradient: Callable[[Any, list[Any]], Sequence[Any]],
    on_arrays: Callable[..., Sequence[Any]],
    outputs: Callable[[Sequence[Any]], Sequence[tuple[Any, Any]]],
    *,
    grouped: bool = True,
    inputs: tuple[str, ...] = ("tensor",),
) -> None:
    """Define the op of a kind (``"Allreduce"``), and the one for groups.

    Args:
        gradient: takes the node and the gradients of its results, and returns the gradients of the inputs.
            It uses the attributes of the node alone: the Python objects of the call may be gone. The backward
            pass of a collective is itself a collective of the same ranks.
        on_arrays: does the work where the glue does not fit this TensorFlow. It takes ``arrays``, ``key``
            (by which ranks recognise the operation), ``process_set`` and the other attributes, and returns
            the results.
        outputs: takes the inputs, and returns the dtype of each result and what is known of its shape.
        inputs: names of the inputs of the op that is not for groups.
    """
    for type_ in (kind, f"Grouped{kind}") if grouped else (kind,):
        _functions[type_] = native.function(
            f"Horovod{type_}", gradient, on_arrays, outputs, None if type_ != kind else inputs
        )


def call(
    kind: str,
    tensor: Any,
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet | int,
    **how: Any,
) -> Any:
    """Run the op of a kind on ``tensor``, and return its result.

    Args:
        name: see :func:`horovod.tensorflow.calls.identity`, as for the next two.
        process_set: the set or its number.
        how: the arguments of this kind alone.
    """
    number = process_set if isinstance(process_set, int) else process_set_id(process_set)
    tensor = raw(tensor)
    who = identity(kind, name, [tensor], ignore_name_scope, number)
    return _functions[kind](tensor=tensor, **how, **who)


def call_grouped(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet | int,
    **how: Any,
) -> list[Any]:
    """:func:`call` of a group: all ``tensors``, of one dtype, as one operation."""
    number = process_set if isinstance(process_set, int) else process_set_id(process_set)
    if not tensors:
        return []
    tensors = [raw(tensor) for tensor in tensors]
    who = identity(f"Grouped{kind}", name, tensors, ignore_name_scope, number)
    return list(_functions[f"Grouped{kind}"](tensors=tensors, **how, **who))


def reduction(op: int, prescale: float, postscale: float) -> dict[str, Any]:
    """The arguments that only reductions have.

    Raises:
        ValueError: ``op`` is no reduction.
    """
    return {"reduce_op": checked_op(op), "prescale_factor": prescale, "postscale_factor": postscale}


def reduction_of(node: Any) -> dict[str, Any]:
    """:func:`reduction` as the node of a reduction has it."""
    return {name: node.get_attr(name) for name in ("reduce_op", "prescale_factor", "postscale_factor")}


def place(node: Any) -> tuple[None, bool, int]:
    """Arguments for the node's gradient: no name, whether scopes count, the number of the set."""
    return None, node.get_attr("ignore_name_scope"), node.get_attr("process_set_id")


def same_shapes(inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Results like the inputs."""
    return [(each.dtype, each.shape) for each in inputs]


def other_rows(inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Results like the inputs, with any number of rows."""
    results = []
    for each in inputs:
        shape = each.shape
        if shape.rank == 0:
            raise InvalidArgumentError("Shape must be at least rank 1 but is rank 0")
        results.append((each.dtype, tf.TensorShape(None) if shape.rank is None else [None, *shape[1:]]))
    return results


# -- around the ops -----------------------------------------------------------------------------------------


def check_world(process_set: ProcessSet) -> None:
    """Look whether an operation of ``process_set`` can be called.

    Raises:
        ValueError: there is no world, or no such set.
    """
    engine = lifecycle.current().engine
    number = process_set_id(process_set)
    if process_set is not global_process_set and number not in engine.process_sets():
        raise InvalidArgumentError(f"{process_set} does not exist (any more).")


def dense(tensor: Any) -> Any:
    """``tensor``, which may be a number or an array, as an input of an op."""
    tensor = raw(tensor)
    return tensor if hasattr(tensor, "dtype") else tf.convert_to_tensor(tensor)
