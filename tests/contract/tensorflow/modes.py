"""The ways to run TensorFlow, so that one case covers all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

# A step in eager mode, in a traced function; in a graph with resource variables and functional control flow
# (`disable_eager_execution()`), and with reference variables and v1 control flow (`disable_v2_behavior()`).
GRAPHS = ("graph", "graph_v1")
MODES = ("eager", "function", *GRAPHS)


@contextmanager
def graph(mode: str) -> Iterator[Any]:
    """A fresh v1 graph as the current one."""
    old = tf.compat.v1.control_flow_v2_enabled()
    if mode == "graph_v1":
        tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as fresh:
            yield fresh
    finally:
        if old:
            tf.compat.v1.enable_control_flow_v2()


def variable(mode: str, value: Any, dtype: Any = tf.float32, name: str = "v") -> Any:
    """A trainable variable of the kind that ``mode`` has."""
    value = np.asarray(value, dtype.as_numpy_dtype)
    if mode in GRAPHS:
        return tf.compat.v1.Variable(value, use_resource=mode == "graph", name=name)
    return tf.Variable(value, name=name)


class Session:
    """Runs what was built in the current graph, with all variables initialised."""

    def __init__(self) -> None:
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=1)
        self._session = tf.compat.v1.Session(config=config)
        self.run(tf.compat.v1.global_variables_initializer())
        self.run(tf.compat.v1.local_variables_initializer())

    def run(self, what: Any) -> Any:
        return self._session.run(what)


def values_after(
    mode: str,
    build: Callable[[], tuple[Callable[[], Any], Sequence[Any]]],
    steps: int = 1,
) -> list[list[np.ndarray[Any, Any]]]:
    """The values of some variables after each step.

    Args:
        build: makes the variables; returns a function that does a step (in graphs, makes its operation) and
            the variables to look at.
    """
    seen = []
    if mode in GRAPHS:
        with graph(mode):
            step, variables = build()
            operation = step()
            session = Session()
            for _ in range(steps):
                session.run(operation)
                seen.append([np.asarray(each) for each in session.run(list(variables))])
        return seen
    step, variables = build()
    run = tf.function(step) if mode == "function" else step
    for _ in range(steps):
        run()
        seen.append([each.numpy() for each in variables])
    return seen


def gradients_of(mode: str, build: Callable[[], Any]) -> Any:
    """What ``build`` returns, evaluated: tensors in any structure, ``IndexedSlices`` as dense arrays."""
    if mode in GRAPHS:
        with graph(mode):
            result = tf.nest.map_structure(_dense, build())
            return Session().run(result)
    made = tf.function(build)() if mode == "function" else build()
    return tf.nest.map_structure(lambda each: None if each is None else _dense(each).numpy(), made)


def _dense(tensor: Any) -> Any:
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor
