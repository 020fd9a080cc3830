"""`DistributedOptimizer(op=Adasum)` around optimizers of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.tensorflow.modes import GRAPHS, Session, graph, values_after, variable
from tests.contract.tensorflow.v1_optimizer import minimizing
from tests.contract.world import Cases

import horovod.tensorflow as hvd

v1 = tf.compat.v1
CASES = Cases()
MODES = ("eager", *GRAPHS)


def power_of_two() -> bool:
    return not hvd.size() & (hvd.size() - 1)


def steps_that_have_nothing_in_common_add_up(mode: str, passes: int) -> None:
    """And equal ones count once. The wrapped optimizer has momentum of its own."""
    me, ranks = hvd.rank(), hvd.size()
    if not power_of_two():
        return
    own = np.zeros(ranks, np.float32)
    own[me] = 1.0

    def build() -> tuple[Callable[[], Any], list[Any]]:
        apart, alike = variable(mode, np.zeros(ranks)), variable(mode, [1.0, 1.0])
        optimizer = hvd.DistributedOptimizer(
            v1.train.MomentumOptimizer(1.0, 0.5), op=hvd.Adasum, backward_passes_per_step=passes
        )
        assert isinstance(optimizer, v1.train.Optimizer)
        assert optimizer.get_name() == "DistributedDeltaMomentumOptimizer"
        loss = lambda: -tf.reduce_sum(apart * own) + tf.reduce_sum(alike)  # noqa: E731
        return minimizing(optimizer, [apart, alike], loss), [apart, alike]

    seen = values_after(mode, build, steps=4)
    steps = np.array([1.0, 1.5, 1.75, 1.875])
    for number, (apart, alike) in enumerate(seen, 1):
        np.testing.assert_allclose(alike, 1 - steps[:number].sum() * np.ones(2), rtol=1e-5)
        exchanged = number // passes * passes
        expected = np.full(ranks, steps[:exchanged].sum())
        expected[me] = steps[:number].sum()
        np.testing.assert_allclose(apart, expected, rtol=1e-5)


def slots_of_both_are_reachable(mode: str) -> None:
    if not power_of_two():
        return
    with graph(mode):
        weight = variable(mode, [1.0, 2.0], name="w")
        optimizer = hvd.DistributedOptimizer(
            v1.train.MomentumOptimizer(1.0, 0.5),
            op=hvd.Adasum,
            compression=hvd.Compression.fp16,
            device_dense="/cpu:0",
        )
        step = v1.train.get_or_create_global_step()
        update = optimizer.minimize(tf.reduce_sum(weight), global_step=step)
        assert optimizer.get_slot_names() == ["delta_start", "momentum"]
        session = Session()
        session.run(update)
        assert session.run(step) == 1
        start, momentum = (optimizer.get_slot(weight, name) for name in optimizer.get_slot_names())
        np.testing.assert_allclose(session.run([start, weight, momentum]), [[0, 1], [0, 1], [1, 1]])
        assert len(optimizer.variables()) == 3  # with the count of steps
        counts = [each for each in optimizer.variables() if each.dtype.base_dtype == tf.int64]
        assert session.run(counts) == [1]


def variables_may_change_between_cycles(mode: str) -> None:
    """What broadcasts and restores write is what the next cycle begins with."""
    if not power_of_two():
        return
    with graph(mode):
        weight = variable(mode, [1.0])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
        update = optimizer.minimize(tf.reduce_sum(weight))
        overwrite = v1.assign(weight, [100.0])
        session = Session()
        for operation in (update, overwrite, update):
            session.run(operation)
        np.testing.assert_allclose(session.run(weight), [99.0])


def ranks_that_step_different_variables(mode: str, passes: int) -> None:
    """In eager code these steps are combined, too; in graphs they are told, and never mixed."""
    if hvd.size() != 2:
        return

    def build() -> tuple[Callable[[], Any], list[Any]]:
        heads, unused = [variable(mode, [0.0]) for _ in range(2)], variable(mode, [7.0])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=passes
        )
        loss = lambda: tf.reduce_sum(heads[hvd.rank()] * -(hvd.rank() + 1.0))  # noqa: E731
        return minimizing(optimizer, [*heads, unused], loss), [*heads, unused]

    if mode != "eager":
        with pytest.raises(tf.errors.OpError, match="gradients for different variables"):
            values_after(mode, build, steps=passes)
        return
    *_, (first, second, unused) = values_after(mode, build, steps=2 * passes)
    assert [float(first[0]), float(second[0]), float(unused[0])] == [2.0 * passes, 4.0 * passes, 7.0]


for mode in MODES:
    for passes in (1, 2):
        if mode == "eager" or os.environ.get("FARANDOLE_FULL_MATRIX"):  # the error of graphs takes its time
            CASES.add_as(
                f"{mode}_{passes}_passes_of_different_variables",
                functools.partial(ranks_that_step_different_variables, mode, passes),
            )
        CASES.add_as(
            f"{mode}_{passes}_passes",
            functools.partial(steps_that_have_nothing_in_common_add_up, mode, passes),
        )
    if mode in GRAPHS:
        for case in (slots_of_both_are_reachable, variables_may_change_between_cycles):
            CASES.add_as(f"{mode}_{case.__name__}", functools.partial(case, mode))


@CASES.add
def a_number_of_ranks_that_is_no_power_of_two_is_refused() -> None:
    if power_of_two():
        return
    weight = tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
    with pytest.raises(NotImplementedError):
        optimizer.minimize(lambda: weight * 2.0, var_list=[weight])
