"""`DistributedGradientTape` and `PartialDistributedGradientTape`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.tensorflow.modes import gradients_of, graph
from tests.contract.world import Cases

import horovod.tensorflow as hvd
from horovod.runtime import lifecycle
from horovod.tensorflow.gradient_reduction import is_marked

CASES = Cases()
MODES = ("eager", "function", "graph")


def mean_rank() -> float:
    return (hvd.size() - 1) / 2


def add_in_modes(case: Callable[[str], None]) -> Callable[[str], None]:
    for mode in MODES:
        CASES.add_as(f"{mode}_{case.__name__}", functools.partial(case, mode))
    return case


def made(mode: str, value: Any, dtype: Any = tf.float32) -> Any:
    return tf.Variable(tf.constant(value, dtype))


# In functions variables exist before the trace; in v1 graphs they belong to the graph.
def check(mode: str, variables: Callable[[], Any], gradients: Callable[[Any], Any], expected: Any) -> None:
    if mode == "graph":
        result = gradients_of(mode, lambda: gradients(variables()))
    else:
        held = variables()
        result = gradients_of(mode, lambda: gradients(held))
    tf.nest.assert_same_structure(
        result, expected if isinstance(result, dict) else list(expected), check_types=False
    )
    for got, wanted in zip(tf.nest.flatten(result), tf.nest.flatten(expected), strict=True):
        if wanted is None:
            assert got is None
        else:
            np.testing.assert_allclose(
                got, wanted, rtol=2e-3 if np.asarray(got).dtype == np.float16 else 1e-6
            )


def three(mode: str) -> list[Any]:
    return [made(mode, [1.0, 2.0]), made(mode, 3.0, tf.float64), made(mode, [[5.0]], tf.float16)]


def loss_of(variables: list[Any]) -> Any:
    """Gradients: 2 x (rank + 1); ones times rank; 4."""
    first, second, third = variables
    loss = tf.reduce_sum(tf.square(first)) * (hvd.rank() + 1)
    loss += tf.cast(second * hvd.rank(), tf.float32)
    return loss + tf.cast(tf.reduce_sum(third), tf.float32) * 4


def expected_of(total: bool) -> list[Any]:
    factor = hvd.size() if total else 1
    return [
        np.array([2.0, 4.0]) * (mean_rank() + 1) * factor,
        np.array(mean_rank()) * factor,
        np.array([[4.0]]) * factor,
    ]


@add_in_modes
def gradients_are_averaged(mode: str) -> None:
    """Wrapped after recording, and as the context manager itself."""

    def after(variables: list[Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(variables)
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    def before(variables: list[Any]) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(variables)
        return tape.gradient(loss, tuple(variables))

    for gradients in (after, before):
        check(mode, lambda: three(mode), gradients, expected_of(False))


OPTIONS: dict[str, dict[str, Any]] = {
    "sum": {"op": hvd.Sum},
    "fp16": {"compression": hvd.Compression.fp16},
    "two_groups": {"groups": 2},
    "many_groups": {"groups": 50},
    "lists": {"groups": "lists"},
    "predivide": {"gradient_predivide_factor": 4.0},
}


def options_of_the_tape(mode: str, options: dict[str, Any]) -> None:
    def gradients(variables: list[Any]) -> Any:
        given = dict(options)
        if given.get("groups") == "lists":
            given["groups"] = [[variables[2], variables[0]], []]
        with tf.GradientTape() as tape:
            loss = loss_of(variables)
        result = hvd.DistributedGradientTape(tape, **given).gradient(loss, variables)
        assert [each.dtype for each in result] == [tf.float32, tf.float64, tf.float16]
        return result

    total = options.get("op") == hvd.Sum
    check(mode, lambda: three(mode), gradients, expected_of(total))


for mode in MODES:
    for label, options in OPTIONS.items():
        CASES.add_as(f"{mode}_{label}", functools.partial(options_of_the_tape, mode, options))


@add_in_modes
def sources_may_be_any_structure(mode: str) -> None:
    def single(variable: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = variable * hvd.rank()
        return {"it": hvd.DistributedGradientTape(tape).gradient(loss, variable)}

    check(mode, lambda: made(mode, 1.0), single, {"it": np.float32(mean_rank())})

    def nested(variables: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = variables["a"] * hvd.rank() + variables["b"][0] * 2
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    check(
        mode,
        lambda: {"a": made(mode, 1.0), "b": [made(mode, 1.0)]},
        nested,
        {"a": np.float32(mean_rank()), "b": [np.float32(2.0)]},
    )


@CASES.add
def what_is_not_connected_is_none_or_zeros() -> None:
    used, unused = tf.Variable(1.0), tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        loss = used * hvd.rank()
    wrapped = hvd.DistributedGradientTape(tape)
    for _ in range(2):  # it is persistent
        gradients = wrapped.gradient(loss, [unused, used])
        assert gradients[0] is None
        assert float(gradients[1]) == mean_rank()
        assert is_marked(gradients[1])
    zeros = wrapped.gradient(loss, [unused, used], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    np.testing.assert_array_equal(zeros[0], [0.0, 0.0])
    assert wrapped.gradient(loss, [unused]) == [None]


@CASES.add
def a_tape_is_used_up_with_its_wrapper() -> None:
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    wrapped = hvd.DistributedGradientTape(tape)
    assert isinstance(wrapped, tf.GradientTape)
    assert type(wrapped).__name__ == "GradientTape"
    assert float(wrapped.gradient(loss, [variable])[0]) == 2.0
    assert wrapped.watched_variables()[0] is variable
    with pytest.raises(RuntimeError):
        wrapped.gradient(loss, [variable])


@CASES.add
def a_subclass_of_a_tape_keeps_what_it_has() -> None:
    class Tape(tf.GradientTape):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(persistent=True, watch_accessed_variables=False)
            self.mark = "mine"

    variable = tf.Variable(1.0)
    tape = hvd.DistributedGradientTape(Tape())
    with tape:
        unseen = variable * 1.0
        tape.watch(variable)
        loss = variable * hvd.rank()
    assert tape.mark == "mine"
    assert tape.gradient(unseen, variable) is None
    assert float(tape.gradient(loss, variable)) == mean_rank()


@add_in_modes
def slices_are_gathered(mode: str) -> None:
    me, ranks = hvd.rank(), hvd.size()
    expected = np.zeros((ranks + 1, 2), np.float32)
    for rank in range(ranks):
        expected[rank : rank + 2] += (rank + 1) / ranks
    for options in ({}, {"sparse_as_dense": True}, {"groups": 2}):

        def gradients(variables: list[Any], options: dict[str, Any] = options) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.gather(variables[0], [me, me + 1])
                loss = tf.reduce_sum(rows) * (me + 1) + variables[1] * me
            result = hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)
            assert isinstance(result[0], tf.IndexedSlices) != ("sparse_as_dense" in options)
            return result

        check(
            mode,
            lambda: [made(mode, np.zeros((ranks + 1, 2))), made(mode, 0.0)],
            gradients,
            [expected, np.float32(mean_rank())],
        )


@add_in_modes
def only_members_of_the_set_exchange(mode: str) -> None:
    me, ranks = hvd.rank(), hvd.size()
    if ranks < 3:
        return
    sets = [hvd.add_process_set(range(start, ranks, 2)) for start in (0, 1)]
    for process_set in sets:

        def gradients(variables: list[Any], process_set: Any = process_set) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.square(variables[0])
            return hvd.DistributedGradientTape(tape, process_set=process_set).gradient(loss, variables)

        members = process_set.ranks or []
        expected = 2 * np.mean(members) if me in members else 2 * me
        check(mode, lambda: [made(mode, float(me))], gradients, [np.float32(expected)])
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


@CASES.add
def members_of_sets_that_share_a_rank_agree_on_names() -> None:
    """In one function, each rank differentiates for the sets that it is in: rank 1 twice, the others once."""
    ranks = hvd.size()
    if ranks < 3:
        return
    sets = [hvd.add_process_set([first, first + 1]) for first in (0, 1)]
    variable = tf.Variable([1.0, 2.0])

    def gradients() -> list[Any]:
        found = []
        for process_set in sets:
            if process_set.included():
                with hvd.DistributedGradientTape(tf.GradientTape(), process_set=process_set) as tape:
                    loss = tf.reduce_sum(variable * variable) * (hvd.rank() + 1.0)
                found.append(tape.gradient(loss, [variable])[0])
        return found

    steps = tf.function(gradients)
    for _ in range(2):
        expected = [(2 * first + 3) / 2 for first in (0, 1) if hvd.rank() in (first, first + 1)]
        for gradient, mean in zip(steps(), expected, strict=True):
            np.testing.assert_allclose(gradient, [2 * mean, 4 * mean])
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


@CASES.add
def an_unregistered_set_is_an_error() -> None:
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    wrapped = hvd.DistributedGradientTape(tape, process_set=hvd.ProcessSet([0]))
    with pytest.raises(TypeError, match="not registered"):
        wrapped.gradient(loss, [variable])


@CASES.add
def adasum_combines_gradients_pairwise() -> None:
    ranks = hvd.size()
    variable = tf.Variable([[0.0, 0.0], [0.0, 0.0]])
    slopes = [np.array([[1.0, rank], [0.5 * rank, 2.0]]) for rank in range(ranks)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * slopes[hvd.rank()].astype(np.float32))
    wrapped = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    if ranks & (ranks - 1):
        with pytest.raises(NotImplementedError):
            wrapped.gradient(loss, [variable])
        return
    level = slopes
    while len(level) > 1:
        level = [
            (1 - np.sum(a * b) / (2 * np.sum(a * a))) * a + (1 - np.sum(a * b) / (2 * np.sum(b * b))) * b
            for a, b in zip(level[::2], level[1::2], strict=True)
        ]
    (gradient,) = wrapped.gradient(loss, [variable])
    np.testing.assert_allclose(gradient.numpy(), level[0], rtol=1e-5)


# -- local sources


def layers_of() -> tuple[Any, list[Any]]:
    """Three layers whose variables have equal names; weights are the rank, so gradients differ."""
    keras = tf.keras
    constant = keras.initializers.Constant(float(hvd.rank() + 1))
    layers = [keras.layers.Dense(2, kernel_initializer=constant, use_bias=False) for _ in range(3)]
    model = keras.Sequential(layers)
    model.build((None, 2))
    return model, layers


def local_layers_are_not_reduced(mode: str, count: int) -> None:
    me, ranks = hvd.rank(), hvd.size()
    model, layers = layers_of()
    data = tf.ones([1, 2]) * (me + 1)
    for scale in (True, False):

        def gradients(scale: bool = scale) -> Any:
            with tf.GradientTape(persistent=True) as plain:
                loss = tf.reduce_sum(model(data))
            own = plain.gradient(loss, model.trainable_weights)
            chosen = [None, layers[0], layers[:2]][count]
            tape = hvd.PartialDistributedGradientTape(
                plain, local_layers=chosen, scale_local_gradients=scale, groups=[model.trainable_weights[:2]]
            )
            local, common = tape.get_local_and_global_gradients(loss, model.trainable_weights)
            assert [source for source, _ in local] == model.trainable_weights[:count]
            assert [source for source, _ in common] == model.trainable_weights[count:]
            return own, [gradient for _, gradient in local], [gradient for _, gradient in common]

        own, local, common = gradients_of(mode, gradients)
        divisor = ranks if scale else 1
        for got, mine in zip(local, own[:count], strict=True):
            np.testing.assert_allclose(got, mine / divisor, rtol=1e-6)
        everybody = hvd.allgather_object(own)
        for position, got in enumerate(common, count):
            mean = sum(each[position] for each in everybody) / ranks
            np.testing.assert_allclose(got, mean, rtol=1e-5)


for mode in ("eager", "function"):
    for count in (0, 1, 2):
        CASES.add_as(
            f"{mode}_{count}_local_layers", functools.partial(local_layers_are_not_reduced, mode, count)
        )


@CASES.add
def several_sources_may_be_local_by_hand() -> None:
    variables = [tf.Variable(1.0), tf.Variable(1.0), tf.Variable([1.0, 1.0])]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(each) for each in variables]) * hvd.rank()
    wrapped = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
    wrapped.register_local_source(variables[0])
    wrapped.register_local_source(variables[2])
    result = wrapped.gradient(loss, variables)
    assert float(result[0]) == hvd.rank()
    assert float(result[1]) == mean_rank()
    np.testing.assert_array_equal(result[2], [hvd.rank()] * 2)


@CASES.add
def ranks_may_hold_different_parts_of_a_model() -> None:
    """A table per rank, of another size each; looked up by the others through alltoall."""
    me, ranks = hvd.rank(), hvd.size()
    table = tf.Variable(tf.ones([me + 2, 3]))
    head = tf.Variable(tf.ones([3, 1]))
    wanted = tf.constant([(me + rank) % (rank + 2) for rank in range(ranks)])  # one row of everybody's

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.GradientTape() as tape:
            asked = hvd.alltoall(wanted, splits=[1] * ranks)[0]
            rows = hvd.alltoall(tf.gather(table, asked), splits=[1] * ranks)[0]
            loss = tf.reduce_sum(rows @ head) * (me + 1)
        wrapped = hvd.DistributedGradientTape(tape)
        wrapped.register_local_source(table)
        return wrapped.gradient(loss, [table, head], use_generic_names=True)

    own, common = step()
    np.testing.assert_allclose(common, np.full([3, 1], ranks * (mean_rank() + 1)), rtol=1e-6)
    expected = np.zeros([me + 2, 3])
    for rank in range(ranks):
        expected[(rank + me) % (me + 2)] += (rank + 1) / ranks
    np.testing.assert_allclose(tf.convert_to_tensor(own), expected, rtol=1e-6)


@CASES.add
def generic_names_do_not_depend_on_the_graph_around() -> None:
    variable = tf.Variable(1.0)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.name_scope(f"of_rank_{hvd.rank()}"), tf.GradientTape() as tape:
            loss = variable * hvd.rank()
        with tf.name_scope(f"of_rank_{hvd.rank()}"):
            return hvd.DistributedGradientTape(tape).gradient(loss, [variable], use_generic_names=True)

    assert float(step()[0]) == mean_rank()


@CASES.add
def two_tapes_in_one_function_do_not_meet() -> None:
    first, second = tf.Variable(1.0), tf.Variable(1.0)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.GradientTape() as one, tf.GradientTape() as other:
            loss = first * hvd.rank() + second * 2
        return (
            hvd.DistributedGradientTape(one).gradient(loss, [first]),
            hvd.DistributedGradientTape(other).gradient(loss, [second]),
        )

    (one,), (other,) = step()
    assert float(one) == mean_rank()
    assert float(other) == 2.0


# -- elastic


def elastic() -> Any:
    """A context in which the world is one that may change."""
    runtime = lifecycle.current()
    changing = dataclasses.replace(runtime, config=dataclasses.replace(runtime.config, elastic=True))
    return mock.patch.object(lifecycle, "current", return_value=changing)


@add_in_modes
def an_elastic_world_decides_at_run_time(mode: str) -> None:
    def gradients(variables: list[Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(variables[:3]) + tf.reduce_sum(tf.gather(variables[3], [0])) * hvd.rank()
        wrapped = hvd.DistributedGradientTape(tape)
        wrapped.register_local_source(variables[2])
        return wrapped.gradient(loss, variables)

    first, second, third = expected_of(False)
    with elastic():
        check(
            mode,
            lambda: [*three(mode), made(mode, [[1.0], [1.0]])],
            gradients,
            [first, second, third / hvd.size(), np.array([[mean_rank()], [0.0]])],
        )
    with elastic(), graph("graph") as built:
        gradients([*three("graph"), made("graph", [[1.0], [1.0]])])
        assert {"HorovodSize", "HorovodProcessSetIncluded", "If"} <= {
            each.type for each in built.get_operations()
        }


@CASES.add
def sparse_gradients_on_one_rank_and_dense_ones_on_another_are_told() -> None:
    if hvd.size() == 1:
        return
    tables = [tf.Variable(tf.ones([3, 2])) for _ in range(2)]
    for which in (0, 1):

        def step(which: int = which) -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                rows = tf.gather(tables[which], [0]) if hvd.rank() == 0 else tables[which]
                loss = tf.reduce_sum(rows) + tf.reduce_sum(tables[1 - which])
            return tape.gradient(loss, tables)

        for way in (step, tf.function(step)):
            with pytest.raises(tf.errors.OpError, match=r"ALLGATHER(.|\n)*sparse_as_dense"):
                way()


@CASES.add
def gradients_for_different_variables_are_told_in_graphs_and_never_mixed() -> None:
    body, *heads = [tf.Variable([1.0, 2.0]) for _ in range(4)]

    def step(mine: int, unconnected: Any = tf.UnconnectedGradients.NONE) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(body) + tf.reduce_sum(heads[mine] * 30.0)
        return tape.gradient(loss, [body, *heads], unconnected_gradients=unconnected)

    turns = [1.0, 30.0 / hvd.size(), 30.0 - 30.0 / hvd.size()]
    for way in (step, tf.function(step)):
        same = [None if each is None else each.numpy().tolist() for each in way(0)]
        assert same == [[1.0, 1.0], [30.0, 30.0], None, None]
        if hvd.size() == 1:
            continue
        mine = min(hvd.rank(), 1)
        if way is step:
            *some, last = way(mine)
            assert last is None
            assert np.allclose([each.numpy()[0] for each in some], turns)
        else:
            with pytest.raises(tf.errors.OpError, match=r"lacks\.(.|\n)*gradients for different variables"):
                way(mine)
        zeros = way(mine, tf.UnconnectedGradients.ZERO)
        assert np.allclose([each.numpy()[0] for each in zeros], [*turns, 0.0])
