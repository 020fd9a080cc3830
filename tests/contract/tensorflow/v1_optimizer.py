"""`DistributedOptimizer` around optimizers of `tf.compat.v1.train`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.tensorflow.modes import GRAPHS, MODES, Session, graph, values_after, variable
from tests.contract.world import Cases

import horovod.tensorflow as hvd

v1 = tf.compat.v1
CASES = Cases()

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"compression": hvd.Compression.fp16},
    "two_groups": {"groups": 2},
    "many_groups": {"groups": 99},
    "lists": {"groups": "lists"},
    "predivide": {"gradient_predivide_factor": 2.0},
    "sum": {"op": hvd.Sum},
    "on_the_cpu": {"device_dense": "/cpu:0"},
}


def slopes(rank: int) -> list[Any]:
    """The gradients of one rank: several shapes and types."""
    return [
        np.array([1.0, 2.0, 3.0], np.float32) * (rank + 1),
        np.array([[4.0, 5.0]]) * (rank - 1),
        np.float32(0.5 + rank),
        np.array([1.0, rank], np.float16),
    ]


def slopes_of_all(op: int = hvd.Average) -> list[Any]:
    total = [sum(each) for each in zip(*map(slopes, range(hvd.size())), strict=True)]
    return total if op == hvd.Sum and hvd.size() > 1 else [each / hvd.size() for each in total]


def variables_for(mode: str) -> list[Any]:
    types = (tf.float32, tf.float64, tf.float32, tf.float16)
    return [
        variable(mode, np.zeros(np.shape(slope)), dtype)
        for slope, dtype in zip(slopes(0), types, strict=True)
    ]


def loss_of(variables: list[Any], rank: int | None = None) -> Any:
    """A scalar whose gradients are ``slopes``."""
    rank = hvd.rank() if rank is None else rank
    products = [
        tf.cast(tf.reduce_sum(each * slope), tf.float32)
        for each, slope in zip(variables, slopes(rank), strict=True)
    ]
    return tf.add_n(products)


def minimizing(optimizer: Any, variables: list[Any], loss: Callable[[], Any]) -> Callable[[], Any]:
    """One step, in whatever mode: v1 optimizers take a function in eager mode and a tensor in graphs."""

    def step() -> Any:
        session = not tf.inside_function() and not tf.executing_eagerly()
        operation = optimizer.minimize(loss() if session else loss, var_list=variables)
        return operation if session else None

    return step


def steps_with_options(mode: str, options: dict[str, Any]) -> None:
    def build() -> tuple[Callable[[], Any], list[Any]]:
        variables = variables_for(mode)
        given = dict(options)
        if given.get("groups") == "lists":
            given["groups"] = [[variables[2], variables[0]], [variables[1]]]
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **given)
        return minimizing(optimizer, variables, lambda: loss_of(variables)), variables

    seen = values_after(mode, build, steps=2)
    tolerance = 1e-2 if "compression" in options else 1e-6
    for number, values in enumerate(seen, 1):
        for value, slope in zip(values, slopes_of_all(options.get("op", hvd.Average)), strict=True):
            loose = max(tolerance, 2e-3) if value.dtype == np.float16 else tolerance
            np.testing.assert_allclose(value, -number * slope, rtol=loose, atol=loose)


for mode in MODES:
    for label, options in OPTIONS.items():
        if mode in ("eager", "graph") or label in ("plain", "lists"):
            CASES.add_as(f"{mode}_{label}", functools.partial(steps_with_options, mode, options))


def gradients_are_reduced_before_they_are_clipped(mode: str) -> None:
    """A script that calls the two methods itself sees reduced gradients, and `None` where there is none."""
    with graph(mode):
        used, unused = variable(mode, [0.0, 0.0]), variable(mode, 0.0)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        assert isinstance(optimizer, v1.train.Optimizer)
        pairs = optimizer.compute_gradients(tf.reduce_sum(used) * hvd.rank(), [unused, used])
        assert pairs[0][0] is None
        assert [each for _, each in pairs] == [unused, used] or mode == "graph_v1"
        clipped = [(tf.minimum(gradient, 0.25), each) for gradient, each in pairs if gradient is not None]
        update = optimizer.apply_gradients(clipped)
        session = Session()
        mean = sum(range(hvd.size())) / hvd.size()
        np.testing.assert_allclose(session.run(pairs[1][0]), [mean, mean])
        session.run(update)
        np.testing.assert_allclose(session.run(used), [-min(mean, 0.25)] * 2)


def slots_and_names_are_those_of_the_wrapped_optimizer(mode: str) -> None:
    names = []
    for wrap in (False, True):
        with graph(mode):
            weight = variable(mode, [1.0, 2.0], name="w")
            bare = v1.train.AdagradOptimizer(0.1)
            optimizer = hvd.DistributedOptimizer(bare) if wrap else bare
            step = v1.train.get_or_create_global_step()
            optimizer.minimize(tf.reduce_sum(weight), global_step=step)
            names.append(sorted(each.name for each in v1.global_variables()))
            assert optimizer.get_slot_names() == ["accumulator"]
            assert optimizer.get_slot(weight, "accumulator").name == "w/Adagrad:0"
            assert len(optimizer.variables()) == 1
            if wrap:
                assert optimizer._optimizer is bare
                assert optimizer.get_name() == "DistributedAdagradOptimizer"
    assert names[0] == names[1]


def slices_are_gathered(mode: str) -> None:
    """Each rank uses rows r and r + 1 of a table, and row 0 twice."""
    me, ranks = hvd.rank(), hvd.size()
    expected = np.zeros((ranks + 1, 2), np.float32)
    for rank in range(ranks):
        for row in (rank, rank + 1, 0):
            expected[row] -= (rank + 1) / ranks
    for options in ({}, {"sparse_as_dense": True}, {"groups": 1}):

        def build(options: dict[str, Any] = options) -> tuple[Callable[[], Any], list[Any]]:
            table = variable(mode, np.zeros((ranks + 1, 2)))
            other = variable(mode, 0.0)
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **options)

            def loss() -> Any:
                rows = tf.gather(table, [me, me + 1, 0])
                return tf.reduce_sum(rows) * (me + 1.0) + other * me

            return minimizing(optimizer, [table, other], loss), [table, other]

        (values,) = values_after(mode, build)
        np.testing.assert_allclose(values[0], expected, rtol=1e-6)
        np.testing.assert_allclose(values[1], -(ranks - 1) / 2, rtol=1e-6)


def local_variables_are_divided_by_the_ranks(mode: str) -> None:
    me, ranks = hvd.rank(), hvd.size()
    for scale in (True, False):

        def build(scale: bool = scale) -> tuple[Callable[[], Any], list[Any]]:
            common, own, table = variable(mode, 0.0), variable(mode, 0.0), variable(mode, [0.0, 0.0])
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0), scale_local_gradients=scale
            )
            optimizer.register_local_var(own)
            optimizer.register_local_var(table)

            def loss() -> Any:
                return (common + own + tf.reduce_sum(tf.gather(table, [1]))) * me

            return minimizing(optimizer, [own, common, table], loss), [common, own, table]

        (values,) = values_after(mode, build)
        mine = -me / ranks if scale else -me
        np.testing.assert_allclose(values[0], -(ranks - 1) / 2, rtol=1e-6)
        np.testing.assert_allclose(values[1], mine, rtol=1e-6)
        np.testing.assert_allclose(values[2], [0.0, mine], rtol=1e-6)


def only_members_of_the_set_exchange(mode: str) -> None:
    me, ranks = hvd.rank(), hvd.size()
    members = list(range(0, ranks, 2))
    everybody = len(members) == ranks
    process_set = hvd.global_process_set if everybody else hvd.add_process_set(members)

    def build() -> tuple[Callable[[], Any], list[Any]]:
        square = variable(mode, float(me))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=process_set)
        return minimizing(optimizer, [square], lambda: tf.square(square)), [square]

    ((value,),) = values_after(mode, build)
    gradient = 2 * np.mean(members) if me in members else 2 * me
    np.testing.assert_allclose(value, me - gradient, rtol=1e-6)
    if not everybody:
        hvd.remove_process_set(process_set)


for mode in MODES:
    if mode in GRAPHS:
        for case in (
            gradients_are_reduced_before_they_are_clipped,
            slots_and_names_are_those_of_the_wrapped_optimizer,
        ):
            CASES.add_as(f"{mode}_{case.__name__}", functools.partial(case, mode))
    for case in (
        slices_are_gathered,
        local_variables_are_divided_by_the_ranks,
        only_members_of_the_set_exchange,
    ):
        CASES.add_as(f"{mode}_{case.__name__}", functools.partial(case, mode))


@CASES.add
def sparse_gradients_refuse_a_predivide_factor() -> None:
    table = tf.Variable([[1.0], [2.0]])
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), gradient_predivide_factor=2.0
    )
    if hvd.size() == 1:
        optimizer.compute_gradients(lambda: tf.reduce_sum(tf.gather(table, [0])), [table])
        return
    with pytest.raises(NotImplementedError):
        optimizer.compute_gradients(lambda: tf.reduce_sum(tf.gather(table, [0])), [table])


@CASES.add
def a_graph_has_no_conditional_and_alone_no_operation_of_ours() -> None:
    """What is exported for inference from such a graph can be loaded without us."""
    with graph("graph") as built:
        weight = variable("graph", [1.0])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        optimizer.minimize(tf.reduce_sum(weight))
        types = {operation.type for operation in built.get_operations()}
        ours = {kind for kind in types if kind.startswith("Horovod")}
        assert ours == (set() if hvd.size() == 1 else {"HorovodGroupedAllreduce"}), ours
        assert not types & {"If", "StatelessIf", "Switch", "Merge"}
        assert not built.as_graph_def().library.function
