"""Embedding tables of each rank, of another size on each, beside a variable that a process set has in common:
registered as local they are never exchanged, whoever computes the gradients."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract.tensorflow.modes import GRAPHS, MODES, values_after, variable
from tests.contract.world import Cases

import horovod.tensorflow as hvd

v1 = tf.compat.v1
CASES = Cases()
FULL = bool(os.environ.get("FARANDOLE_FULL_MATRIX"))

Step = Callable[[Any, Any, Callable[[], Any], dict[str, Any]], Callable[[], Any]]


def by_a_v1_optimizer(table: Any, common: Any, loss: Callable[[], Any], options: dict[str, Any]) -> Any:
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **options)
    optimizer.register_local_var(table)

    def step() -> Any:
        session = not tf.inside_function() and not tf.executing_eagerly()
        operation = optimizer.minimize(loss() if session else loss, var_list=[table, common])
        return operation if session else None

    return step


def by_a_tape(table: Any, common: Any, loss: Callable[[], Any], options: dict[str, Any]) -> Any:
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss()
        wrapped = hvd.DistributedGradientTape(tape, **options)
        wrapped.register_local_source(table)
        for each, gradient in zip([table, common], wrapped.gradient(value, [table, common]), strict=True):
            each.assign_sub(tf.convert_to_tensor(gradient))

    return step


def by_keras(table: Any, common: Any, loss: Callable[[], Any], options: dict[str, Any]) -> Any:
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), **options)
    optimizer.register_local_var(table)
    optimizer.build([table, common])

    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply(tape.gradient(value, [table, common]), [table, common])

    return step


def tables(mode: str, made: Step, options: dict[str, Any], members: list[int], scaled: bool) -> None:
    me, ranks = hvd.rank(), hvd.size()
    everybody = len(members) == ranks
    process_set = hvd.global_process_set if everybody else hvd.add_process_set(members)
    rows = me + 2

    def build() -> tuple[Callable[[], Any], list[Any]]:
        table, common = variable(mode, np.zeros([rows, 3 + me])), variable(mode, [0.0])

        def loss() -> Any:
            return tf.reduce_sum(tf.gather(table, [rows - 1])) + me * tf.reduce_sum(common)

        given = {"process_set": process_set, "scale_local_gradients": scaled, **options}
        return made(table, common, loss, given), [table, common]

    for number, (table, common) in enumerate(values_after(mode, build, steps=2), 1):
        share = len(members) if scaled and me in members else 1
        np.testing.assert_allclose(table[:-1], 0.0)
        np.testing.assert_allclose(table[-1], -number / share, rtol=1e-6)
        mean = sum(members) / len(members) if me in members else float(me)
        np.testing.assert_allclose(common, [-number * mean], rtol=1e-6)
    if not everybody:
        hvd.remove_process_set(process_set)


def of_members(mode: str, made: Step, options: dict[str, Any], scaled: bool) -> None:
    ranks = hvd.size()
    sets = [list(range(ranks)), [ranks - 1], list(range(0, ranks, 2))]
    for members in sets if FULL or ranks > 2 else sets[1:2]:
        tables(mode, made, options, members, scaled)


WAYS: dict[str, Step] = {"v1": by_a_v1_optimizer, "tape": by_a_tape, "keras": by_keras}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dense": {"sparse_as_dense": True},
    "groups": {"groups": 1},
}
for (way, made), mode, label, scaled in itertools.product(WAYS.items(), MODES, OPTIONS, (False, True)):
    if mode in GRAPHS and way != "v1":
        continue  # they compute where they are called
    if FULL or (label == "plain" and not scaled and mode in ("graph", "function")):
        CASES.add_as(
            f"{way}_{mode}_{label}_{'scaled' if scaled else 'whole'}_of_members",
            functools.partial(of_members, mode, made, OPTIONS[label], scaled),
        )
