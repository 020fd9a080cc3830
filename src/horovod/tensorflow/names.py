"""How a collective is called: the name of its node, and what ranks recognise it by."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = ["Names", "names_of", "normalize"]

_NODE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*\Z")


class Names(NamedTuple):
    """Arguments of the generated functions."""

    name: str | None
    tensor_name: str


def normalize(name: str) -> str:
    """``name`` with everything but ASCII letters, digits and underscores replaced by underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def names_of(kind: str, name: str | None, *tensors: Any) -> Names:
    """What to call an op of that kind (``"Allreduce"``) on ``tensors``.

    In a graph the node's name, with the scopes around it, is the identity across ranks. An eager op has no
    name that the kernel could see, so one that was given goes along as an attribute; without one, the order
    of calls decides. Never a fresh string per call: TensorFlow keeps a kernel for each.
    """
    if tf.executing_eagerly():
        return Names(None, name or "")
    if name is None:
        parts = [normalize(_name_in_graph(tensor)) for tensor in tensors]
        return Names("_".join([f"Horovod{kind}", *parts]), "")
    if _NODE.match(name):
        return Names(name, "")
    return Names(normalize(name).lstrip("_") or f"Horovod{kind}", name)


def _name_in_graph(tensor: Any) -> str:
    try:
        return str(tensor.name)
    except (AttributeError, ValueError):  # an eager constant in a graph, an array
        return "constant"
