"""Graphs for serving, without our ops, which a process without Horovod does not know.

A training graph of TensorFlow 1 contains many of them: broadcasts and reductions of gradients. A process that
reads such a graph fails with "Op type not registered". So only the part that the outputs need is saved, with
the values of the variables in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from horovod.errors import InvalidArgumentError

__all__ = ["OP_PREFIX", "inference_graph", "save_inference_model"]

OP_PREFIX: Final = "Horovod"
"""Types of our ops begin with it."""


def save_inference_model(
    session: Any, export_dir: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Write a SavedModel that loads where Horovod is not installed, by ``tf.saved_model.load`` and by the
    loader of TensorFlow 1. Takes what ``tf.compat.v1.saved_model.simple_save`` takes; call it on one rank.

    The SavedModel holds constants: it can be served, not trained further. For that there are checkpoints.

    Args:
        session: in which the variables have their values.
        export_dir: a folder that does not exist yet.
        inputs: names in the signature and the placeholders behind them.
        outputs: names in the signature and the tensors behind them.

    Raises:
        ValueError: the outputs need a collective; which, is said.
    """
    graph = inference_graph(session, list(outputs.values()))
    with tf.Graph().as_default() as fresh:
        tf.graph_util.import_graph_def(graph, name="")
        kept = {
            name: fresh.get_tensor_by_name(tensor.name)
            for name, tensor in inputs.items()
            if tensor.op.name in {node.name for node in graph.node}
        }
        if unused := sorted(inputs.keys() - kept.keys()):
            raise InvalidArgumentError(f"The outputs do not depend on the input {unused[0]!r}: leave it out.")
        with tf.compat.v1.Session(graph=fresh) as served:
            tf.compat.v1.saved_model.simple_save(
                served,
                export_dir,
                kept,
                {name: fresh.get_tensor_by_name(tensor.name) for name, tensor in outputs.items()},
            )


def inference_graph(session: Any, outputs: Sequence[Any]) -> Any:
    """The part of the session's graph that ``outputs`` need, variables replaced by their values.

    Args:
        session: in which the variables have their values.
        outputs: tensors, or names of nodes.

    Returns:
        A ``GraphDef`` without any of our ops, also in functions.

    Raises:
        ValueError: the outputs need a collective; which, is said.
    """
    names = [output if isinstance(output, str) else output.op.name for output in outputs]
    if not names:
        raise InvalidArgumentError("Name at least one output: without any, nothing is left of the graph.")
    # First this, then freezing, which keeps all functions: those of training alone may have ops of ours.
    graph = _without_unused_functions(
        tf.compat.v1.graph_util.extract_sub_graph(session.graph.as_graph_def(), names)
    )
    if ours := [f"{node.name} ({node.op})" for node in _nodes(graph) if node.op.startswith(OP_PREFIX)]:
        raise InvalidArgumentError(
            f"The outputs {', '.join(names)} need {ours[0]}, which does not exist where Horovod is not "
            "loaded. Build the model for inference (training=False) and export that."
        )
    frozen: Any = tf.compat.v1.graph_util.convert_variables_to_constants(session, graph, names)
    return frozen


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _without_unused_functions(graph: Any) -> Any:
    """``graph`` without the functions that none of its nodes uses, directly or through others."""
    functions = {function.signature.name: function for function in graph.library.function}
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph.library.gradient}
    used: set[str] = set()
    open_ends = [name for node in graph.node for name in _functions_of(node)]
    while open_ends:
        name = open_ends.pop()
        if name in used or name not in functions:
            continue
        used.add(name)
        open_ends += [inner for node in functions[name].node_def for inner in _functions_of(node)]
        open_ends += [gradients[name]] if name in gradients else []
    smaller = type(graph)()
    smaller.CopyFrom(graph)
    smaller.ClearField("library")
    smaller.library.function.extend(functions[name] for name in functions if name in used)
    smaller.library.gradient.extend(one for one in graph.library.gradient if one.function_name in used)
    return smaller


def _functions_of(node: Any) -> Iterator[str]:
    """Names of the functions that a node calls: its type may be one, its attributes may name some."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)
