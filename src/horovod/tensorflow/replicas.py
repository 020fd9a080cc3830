"""Comparison of replicas in TensorFlow: in eager mode and in functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.gradients import replicas
from horovod.gradients.fingerprints import fingerprint
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import own_variable
from horovod.runtime import lifecycle

__all__ = ["compare"]


def compare(
    settings: GradientSettings, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> list[Any]:
    """Compare the replicas of ``variables`` if this exchange of their ``gradients`` is one in which ranks do.

    Returns:
        In a graph the operation that has to run before the exchange, which counts, and calls Python now and
        then; else nothing. The graphs of TensorFlow 1 have none.
    """
    chosen = [each for each in variables or () if isinstance(own_variable(each), tf.Variable)]
    if not chosen or lifecycle.current().config.replica_check == "off":
        return []
    check = replicas.replicas_of(settings, chosen, _fingerprints)
    if tf.executing_eagerly():
        check.visit()
        return []
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return []
    if check.counter is None:
        with tf.init_scope(), tf.device("/cpu:0"):
            check.counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="replicas_compared")
    # All variables that this step reads have been read by then, so what wrote them before has ended.
    with tf.control_dependencies([getattr(each, "values", each) for each in gradients]), tf.device("/cpu:0"):
        number = check.counter.assign_add(1, read_value=True)

        def visit(exchange: Any) -> None:
            check.visit_at(int(exchange))

        def call() -> Any:
            with tf.control_dependencies([tf.py_function(visit, [number], [])]):
                return tf.constant(True)

        return [tf.cond(_visits(number), call, lambda: tf.constant(False))]


def _visits(number: Any) -> Any:
    after = number - 1
    return tf.logical_or(_comes(after), _comes(after - 1))


def _comes(step: Any) -> Any:
    both = tf.bitwise.bitwise_and
    often = tf.equal(both(step, step - 1), 0)
    rarely = tf.equal(both(step, replicas.RARELY - 1), 0)
    return tf.logical_and(step > 0, tf.logical_or(often, rarely))


def _fingerprints(variables: Sequence[Any]) -> list[int]:
    return [fingerprint(variable.numpy()) for variable in variables]
