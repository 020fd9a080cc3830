"""Comparison of replicas in TensorFlow: in eager mode and in functions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf

from horovod.gradients import replicas
from horovod.gradients.fingerprints import fingerprint
from horovod.gradients.reduction import stays_local
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import own_variable
from horovod.runtime import lifecycle

__all__ = ["compare", "compare_unexchanged"]

_PLACE: Final = [0]
_UNKNOWN: Final = -(1 << 62)


def compare_unexchanged(settings: GradientSettings, variables: Sequence[Any], cause: str) -> list[Any]:
    """:func:`compare` where ``variables`` are updated by gradients that nobody has reduced as ``settings``
    say: ``cause`` is the message of a difference."""
    own = replace(settings, name=f"{settings.name}.update")
    if stays_local(settings.process_set) or replicas.exchanges_others(own, variables):
        return []
    return compare(own, variables, cause)


def compare(settings: GradientSettings, variables: Sequence[Any] | None, bypassed: str = "") -> list[Any]:
    """Compare the replicas of ``variables`` if this exchange of their gradients is one in which ranks do.
    ``bypassed``: see ``Replicas``.

    Returns:
        In a graph the operation that has to run before the exchange, which counts, and calls Python now and
        then; else nothing. The graphs of TensorFlow 1 have none.
    """
    chosen = [each for each in variables or () if isinstance(own_variable(each), tf.Variable)]
    if not chosen or lifecycle.current().config.replica_check == "off":
        return []
    check = replicas.replicas_of(settings, chosen, _fingerprints, bypassed)
    if tf.executing_eagerly():
        check.visit()
        return []
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return []
    if check.counter is None:
        check.counter = _Counter()
    with tf.device("/cpu:0"):
        number = check.counter.next()

        def visit(exchange: Any, *values: Any) -> None:
            check.visit_at(int(exchange), lambda: check.describe([_fingerprint(each) for each in values]))

        def call() -> Any:
            # Read in the graph, so that it orders this among all that writes them: an update of the last
            # step in this function, and a decay of this one, which does not depend on gradients.
            values = [own_variable(variable).read_value() for variable in chosen]
            with tf.control_dependencies([tf.py_function(visit, [number, *values], [])]):
                return tf.constant(True)

        return [_whole(tf.cond(_visits(number), call, lambda: tf.constant(False)))]


def _whole(outcome: Any) -> Any:
    """The ``outcome`` of a condition, which TensorFlow then runs as one operation. It would otherwise take
    the condition apart, into an operation for each variable that runs in every step."""
    operation = outcome.op
    while operation.type not in ("If", "StatelessIf") and operation.inputs:
        operation = operation.inputs[0].op
    if operation.type in ("If", "StatelessIf"):
        operation._set_attr("_lower_using_switch_merge", tf.compat.v1.AttrValue(b=False))
    return outcome


class _Counter:
    """A number that graphs count. Not a variable: a function may be traced anew at any time, and may then
    make none; and one that is saved could not find it.

    The number is found by name. In a process that has not made it, such as one that has loaded a saved
    function, it stays far below 0, so nobody compares.
    """

    def __init__(self) -> None:
        self._name = f"horovod_replicas_{uuid.uuid4().hex}"
        self.assign(0)

    def assign(self, value: int) -> None:
        """Count on from ``value``."""
        with tf.init_scope(), tf.device("/cpu:0"):
            self._write(self._table(), tf.constant(value, tf.int64))

    def next(self) -> Any:
        """Count, in the graph that is being built."""
        graph = tf.compat.v1.get_default_graph()
        # One for each graph: TensorFlow orders what uses one handle. Graphs within copy the collection.
        known = [handle for handle in graph.get_collection(self._name) if handle.graph is graph]
        table = known[0] if known else self._table()
        if not known:
            graph.add_to_collection(self._name, table)
        unknown = tf.constant(_UNKNOWN, tf.int64)
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=tf.constant(_PLACE, tf.int64), default_value=unknown
        )
        number = tf.reshape(found, []) + 1
        with tf.control_dependencies([self._write(table, number)]):
            return tf.identity(number)

    def _table(self) -> Any:
        return tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name=self._name)

    def _write(self, table: Any, value: Any) -> Any:
        return tf.raw_ops.LookupTableInsertV2(
            table_handle=table, keys=tf.constant(_PLACE, tf.int64), values=tf.reshape(value, [1])
        )


def _visits(number: Any) -> Any:
    after = number - 1
    return tf.logical_or(_comes(after), _comes(after - 1))


def _comes(step: Any) -> Any:
    both = tf.bitwise.bitwise_and
    often = tf.equal(both(step, step - 1), 0)
    rarely = tf.equal(both(step, replicas.RARELY - 1), 0)
    return tf.logical_and(step > 0, tf.logical_or(often, rarely))


def _fingerprints(variables: Sequence[Any]) -> list[int]:
    return list(map(_fingerprint, variables))


def _fingerprint(value: Any) -> int:
    return fingerprint(value.numpy())
