"""`backward_passes_per_step`: sums of several passes, in v1 graphs and in eager mode and functions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract.tensorflow.modes import GRAPHS, Session, graph, variable
from tests.contract.world import Cases

import horovod.tensorflow as hvd
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.gradient_reduction import _make_allreduce_grads_fn

v1 = tf.compat.v1
CASES = Cases()
PASSES = 4


def mean_rank() -> float:
    return (hvd.size() - 1) / 2


def a_v1_optimizer_applies_every_fourth_pass(mode: str, sparse: bool, average: bool) -> None:
    me = hvd.rank()
    with graph(mode):
        weight, idle = variable(mode, [0.0, 0.0]), variable(mode, 0.0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(-1.0),
            backward_passes_per_step=PASSES,
            average_aggregated_gradients=average,
            sparse_as_dense=sparse,
        )
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.gather(weight, [0, 1]) if sparse else weight) * me
        # A variable without gradient before the others: its place must not shift theirs.
        pairs = optimizer.compute_gradients(loss, [idle, weight])
        assert pairs[0][0] is None
        update = optimizer.apply_gradients(pairs, global_step=step)
        session = Session()
        for number in range(10):
            assert session.run(step) == number
            session.run(update)
            factor = 1 if average else PASSES
            expected = (number + 1) // PASSES * mean_rank() * factor
            np.testing.assert_allclose(session.run(weight), [expected] * 2, rtol=1e-6)
        saved = {each.name for each in v1.global_variables()}
        assert not any("aggregation" in name for name in saved), saved
        assert len(v1.get_collection("aggregating_collection")) == 2


def a_v1_optimizer_returns_raw_gradients_in_between(mode: str) -> None:
    with graph(mode):
        weight = variable(mode, [0.0])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(weight) * (hvd.rank() + 1), [weight])
        session = Session()
        np.testing.assert_allclose(session.run(gradient), [hvd.rank() + 1])
        np.testing.assert_allclose(session.run(gradient), [2 * (mean_rank() + 1)])


def local_variables_of_a_v1_optimizer(mode: str) -> None:
    me, ranks = hvd.rank(), hvd.size()
    with graph(mode):
        common, own, idle = variable(mode, 0.0), variable(mode, 0.0), variable(mode, 0.0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(-1.0), backward_passes_per_step=2, groups=[[common]]
        )
        optimizer.register_local_var(own)
        pairs = optimizer.compute_gradients((common + own) * me, [idle, own, common])
        update = optimizer.apply_gradients(pairs)
        session = Session()
        for _ in range(2):
            session.run(update)
        np.testing.assert_allclose(session.run(common), 2 * mean_rank(), rtol=1e-6)
        np.testing.assert_allclose(session.run(own), 2 * me / ranks, rtol=1e-6)


def infinities_do_not_reach_the_next_cycle(mode: str) -> None:
    with graph(mode):
        weight = variable(mode, [0.0])
        factor = v1.placeholder(tf.float32, [])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(weight) * factor, [weight])
        session = Session()
        run = session._session.run
        seen = [run(gradient, {factor: value})[0] for value in (np.inf, 1.0, 1.0, 1.0)]
        assert seen == [np.inf, np.inf, 1.0, 2.0]


def two_optimizers_in_one_graph_have_sums_of_their_own(mode: str) -> None:
    with graph(mode):
        weights = [variable(mode, 0.0), variable(mode, 0.0)]
        updates = []
        for number, weight in enumerate(weights, 1):
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(-1.0), backward_passes_per_step=2
            )
            updates.append(optimizer.minimize(weight * number, var_list=[weight]))
        session = Session()
        for _ in range(2):
            session.run(updates)
        np.testing.assert_allclose(session.run(weights), [2.0, 4.0])


for mode in GRAPHS:
    for sparse in (False, True):
        CASES.add_as(
            f"{mode}_{'slices' if sparse else 'dense'}",
            functools.partial(a_v1_optimizer_applies_every_fourth_pass, mode, sparse, True),
        )
    CASES.add_as(
        f"{mode}_sum", functools.partial(a_v1_optimizer_applies_every_fourth_pass, mode, False, False)
    )
    for case in (
        a_v1_optimizer_returns_raw_gradients_in_between,
        local_variables_of_a_v1_optimizer,
        infinities_do_not_reach_the_next_cycle,
        two_optimizers_in_one_graph_have_sums_of_their_own,
    ):
        CASES.add_as(f"{mode}_{case.__name__}", functools.partial(case, mode))


# -- eager mode and functions


class Counted:
    """Stands for an optimizer of Keras 2."""

    def __init__(self) -> None:
        self.iterations = tf.Variable(0, dtype=tf.int64)


def helper_of(average: bool, **options: Any) -> LocalGradientAggregationHelperEager:
    reduce = _make_allreduce_grads_fn(
        "Test", "", "", hvd.Compression.none, True, hvd.Average, 1.0, None, hvd.global_process_set
    )
    return LocalGradientAggregationHelperEager(PASSES, reduce, True, average, **options)


def passes_in(mode: str, average: bool, local: bool) -> None:
    """Half of the variables local, if any; one gradient sparse, one missing."""
    me, ranks = hvd.rank(), hvd.size()
    dense, table, idle = tf.Variable([0.0, 0.0]), tf.Variable([[0.0], [0.0]]), tf.Variable(0.0)
    optimizer, helper = Counted(), helper_of(average)
    if local:
        helper.register_local_var(table)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = (tf.reduce_sum(dense) + tf.reduce_sum(tf.gather(table, [1]))) * me
        variables = [idle, dense, table]
        gradients = helper.compute_gradients(tape.gradient(loss, variables), variables)
        assert gradients[0] is None
        pairs = list(zip(gradients, variables, strict=True))

        def apply() -> None:
            for gradient, each in pairs:
                if gradient is not None:
                    each.assign_add(gradient)
            optimizer.iterations.assign_add(1)

        helper.apply_gradients(apply, optimizer, pairs)
        return gradients[1]

    run = tf.function(step) if mode == "function" else step
    factor = 1 if average else PASSES
    for number in range(1, 10):
        given = run()
        part = number % PASSES
        assert int(helper.counter.numpy()) == part
        assert int(optimizer.iterations.numpy()) == number
        done = number // PASSES * factor
        np.testing.assert_allclose(dense.numpy(), [done * mean_rank()] * 2, rtol=1e-6)
        np.testing.assert_allclose(
            table.numpy(), [[0.0], [done * (me / ranks if local else mean_rank())]], rtol=1e-6
        )
        if part:
            np.testing.assert_allclose(given.numpy(), [part * me] * 2)


def infinities_in(mode: str) -> None:
    weight, helper = tf.Variable([0.0]), helper_of(False)
    compute: Any = helper.compute_gradients
    run = tf.function(lambda gradient: compute([gradient], [weight])[0])
    if mode == "eager":
        run = lambda gradient: compute([gradient], [weight])[0]  # noqa: E731
    seen = [float(run(tf.constant([value]))[0]) for value in (np.inf, *[1.0] * 7)]
    assert seen[:PASSES] == [np.inf] * PASSES
    assert seen[PASSES:] == [1.0, 2.0, 3.0, 4.0]


for mode in ("eager", "function"):
    for average in (True, False):
        for local in (True, False):
            label = f"{mode}_{'average' if average else 'sum'}_{'some_local' if local else 'none_local'}"
            CASES.add_as(label, functools.partial(passes_in, mode, average, local))
    CASES.add_as(f"{mode}_infinities_do_not_reach_the_next_cycle", functools.partial(infinities_in, mode))


@CASES.add
def a_gradient_that_is_missing_in_some_passes_keeps_its_sum() -> None:
    first, second = tf.Variable(0.0), tf.Variable(0.0)
    helper = helper_of(False)
    given: Sequence[tuple[Any, Any]] = [(1.0, None), (None, 1.0), (1.0, 1.0), (None, None)]
    for gradients in given:
        tensors = [None if each is None else tf.constant(each) for each in gradients]
        result = helper.compute_gradients(tensors, [first, second])
    np.testing.assert_allclose([float(each) for each in result], [2.0, 2.0])
