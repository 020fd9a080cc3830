"""The names of a collective: that of its node, and the one by which ranks recognise it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["identity", "normalize"]

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
