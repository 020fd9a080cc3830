"""Comparison of replicas around tapes: what makes them differ is named, and what only looks like it is passed
over."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.replica_reports import everywhere, is_named, is_passed_over, listening, setting, settle
from tests.contract.world import Cases

import horovod.tensorflow as hvd
from horovod.errors import ReplicasDifferError
from horovod.gradients import replicas
from horovod.gradients.replicas import broadcasts

CASES = Cases()
STEPS = 5
FULL = bool(os.environ.get("FARANDOLE_FULL_MATRIX"))


def weights(seed: int = 0, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        tf.Variable(rng.normal(size=(4, 3)).astype(dtype), name="kernel"),
        tf.Variable(np.zeros(3, dtype), name="bias"),
    ]


def own_data(step: int, dtype: str = "float32") -> Any:
    return tf.constant(np.random.default_rng([hvd.rank(), step]).normal(size=(5, 4)).astype(dtype))


def is_last() -> bool:
    return bool(hvd.rank() == hvd.size() - 1)


def loss_of(model: Sequence[Any], batch: Any) -> Any:
    return tf.reduce_mean(tf.square(batch @ model[0] + model[1]))


def descend(
    model: Sequence[Any], loss: Callable[[], Any], local: Sequence[Any] = (), **options: Any
) -> list[Any]:
    """One step down the gradient of ``loss``, which is exchanged. Returns the gradient."""
    with tf.GradientTape() as tape:
        value = loss()
    wrapped = hvd.DistributedGradientTape(tape, **options)
    for each in local:
        wrapped.register_local_source(each)
    gradients = wrapped.gradient(value, list(model))
    for variable, gradient in zip(model, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    return list(gradients)


def train(
    mode: str,
    model: Sequence[Any],
    after: Callable[[int], None] = lambda step: None,
    steps: int = STEPS,
    **options: Any,
) -> Sequence[Any]:
    def step(batch: Any) -> None:
        descend(model, lambda: loss_of(model, batch), **options)

    run = tf.function(step) if mode == "function" else step
    for number in range(steps):
        run(own_data(number))
        after(number)
    return model


# -- what makes replicas differ -----------------------------------------------------------------------------


def forgotten_broadcast(mode: str) -> Any:
    broadcasts.happened = False  # other cases of this process have broadcast
    return train(mode, weights(hvd.rank()))


def written_on_one_rank(mode: str) -> Any:
    model = weights()
    hvd.broadcast_variables(model, 0)

    def write(step: int) -> None:
        if is_last() and step == 1:
            model[1].assign_add([0.0, 1e-6, 0.0])

    return train(mode, model, write)


def gradient_changed_on_one_rank(mode: str) -> Any:
    """Clipped after the exchange, by a bound of this rank's own."""
    model = weights()
    hvd.broadcast_variables(model, 0)
    bound = tf.constant(1e-3 if is_last() else 1e3)

    def step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, batch)
        for variable, gradient in zip(
            model, hvd.DistributedGradientTape(tape).gradient(loss, model), strict=True
        ):
            variable.assign_sub(tf.clip_by_norm(gradient, bound))

    run = tf.function(step) if mode == "function" else step
    for number in range(STEPS):
        run(own_data(number))
    return model


def broadcast_of_some(mode: str) -> Any:
    model = weights(hvd.rank())
    hvd.broadcast_variables(model[1:], 0)
    return train(mode, model)


def members_differ(mode: str) -> Any:
    members = hvd.add_process_set([0, hvd.size() - 1])
    model = weights()

    def drift(step: int) -> None:
        if is_last() and step == 1:
            model[0].assign(model[0] + 1e-6)

    train(mode, model, drift, process_set=members)
    return members, model


DIFFERENT: dict[Callable[[str], Any], tuple[str, ...]] = {
    forgotten_broadcast: (
        "after step 1 rank {last} has other weights than rank 0",
        "in 1 of 2 tensors: kernel",
        "no rank has called hvd.broadcast_variables",
    ),
    written_on_one_rank: ("in 1 of 2 tensors: bias", "equal after step 1", "written outside"),
    gradient_changed_on_one_rank: ("after step 1", "in 2 of 2 tensors: "),
    broadcast_of_some: ("in 1 of 2 tensors: kernel", "not with these tensors"),
}
for case, words in DIFFERENT.items():
    for mode in ("eager", "function"):
        if FULL or mode == "function" or case is forgotten_broadcast:

            def named(case: Any = case, mode: str = mode, words: Any = words) -> None:
                if hvd.size() > 1:
                    is_named(functools.partial(case, mode), *words)

            CASES.add_as(f"{mode}_{case.__name__}", named)


@CASES.add
def members_of_a_set_compare_among_themselves() -> None:
    if hvd.size() < 3:
        return
    for mode in ("eager", "function"):
        kept: list[Any] = []

        def run(mode: str = mode, kept: list[Any] = kept) -> Any:
            kept.extend(members_differ(mode))

        is_named(run, "rank {last} has other weights than rank 0, in 1 of 2 tensors: kernel")
        hvd.remove_process_set(kept[0])


@CASES.add
def an_error_on_every_rank() -> None:
    """Functions raise it as TensorFlow reports every exception of Python, with the name of the class."""
    if hvd.size() == 1:
        return
    with setting("error"):
        for mode, error in (("eager", ReplicasDifferError), ("function", tf.errors.UnknownError)):
            with pytest.raises(error, match="Replicas differ: after step 1") as caught:
                train(mode, weights(hvd.rank()))
            assert mode == "eager" or "ReplicasDifferError" in str(caught.value)
            assert all(everywhere(True))


@CASES.add
def nobody_looks_where_it_is_off() -> None:
    if hvd.size() == 1:
        return
    with setting("off"):
        model = weights(hvd.rank())
        train("eager", model)
        built = tf.function(lambda batch: descend(model, lambda: loss_of(model, batch)))
        graph = built.get_concrete_function(own_data(0)).graph
    assert "EagerPyFunc" not in {operation.type for operation in graph.get_operations()}
    assert not any(isinstance(each, tf.Variable) and "replicas" in each.name for each in graph.variables)


# -- what only looks like it --------------------------------------------------------------------------------


def quiet(case: Callable[[str], Any]) -> Callable[[str], Any]:
    for mode in ("eager", "function"):
        if FULL or mode == "function":

            def passed_over(mode: str = mode) -> None:
                if hvd.size() > 1:
                    is_passed_over(functools.partial(case, mode))

            CASES.add_as(f"{mode}_quiet_{case.__name__}", passed_over)
    return case


def ready(mode: str, step: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(step) if mode == "function" else step


@quiet
def layers_with_states_of_their_own(mode: str) -> Any:
    """Dropout, the moving statistics of BatchNormalization, and an average of the weights."""
    tf.keras.utils.set_random_seed(7)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(3),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=hvd.rank()),
        ]
    )
    model.layers[0].trainable = True
    average = tf.train.ExponentialMovingAverage(0.9)
    shadows = [tf.Variable(each.value) for each in model.trainable_weights]

    def step(batch: Any) -> None:
        descend(
            [each.value for each in model.trainable_weights],
            lambda: tf.reduce_sum(tf.square(model(batch, training=True))),
        )
        for shadow, weight in zip(shadows, model.trainable_weights, strict=True):
            shadow.assign(0.9 * shadow + 0.1 * weight.value)

    run = ready(mode, step)
    for number in range(STEPS):
        run(own_data(number))
    moving = everywhere(model.layers[1].moving_mean.numpy().tolist())
    assert moving[0] != moving[-1]
    return model, average


@quiet
def tables_of_each_rank(mode: str) -> Any:
    """Registered as local: of other sizes, so nobody could even compare them."""
    table = tf.Variable(tf.ones([2 + hvd.rank(), 4]))
    model = weights()

    def step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, batch + tf.reduce_sum(tf.gather(table, [1, 0]), axis=0))
        wrapped = hvd.DistributedGradientTape(tape)
        wrapped.register_local_source(table)
        *common, own = wrapped.gradient(loss, [*model, table])
        table.assign_sub(tf.convert_to_tensor(own))
        for variable, gradient in zip(model, common, strict=True):
            variable.assign_sub(0.1 * gradient)

    run = ready(mode, step)
    for number in range(STEPS):
        run(own_data(number))
    return model


@quiet
def two_networks_in_one_step(mode: str) -> Any:
    """As in a GAN, of which one makes two steps for each of the other."""
    first, second = weights(1), weights(2)

    def step(batch: Any) -> None:
        for _ in range(2):
            descend(second, lambda: loss_of(second, batch + loss_of(first, batch)))
        descend(first, lambda: loss_of(first, batch) - tf.reduce_sum(second[0]))

    run = ready(mode, step)
    for number in range(STEPS):
        run(own_data(number))
    return first, second


@quiet
def frozen_weights_that_thaw(mode: str) -> Any:
    kernel, bias = weights()

    def step(batch: Any, count: int) -> None:
        descend([kernel, bias][:count], lambda: loss_of([kernel, bias], batch))

    run = ready(mode, step)
    for number in range(2 * STEPS):
        run(own_data(number), 1 if number < STEPS else 2)
    return kernel, bias


@quiet
def weights_of_few_bits(mode: str) -> Any:
    """Of which a gradient that is no number makes the same on every rank."""
    model = weights(dtype="float16")
    for variable in model:
        variable.assign(variable * 1e4)

    def step(batch: Any) -> None:
        descend(model, lambda: loss_of(model, batch))

    run = ready(mode, step)
    for number in range(STEPS):
        run(own_data(number, "float16"))
    return model


@quiet
def a_function_of_several_steps(mode: str) -> Any:
    """Whose gradients depend on the data alone, so that no step has to wait for the weights of the last."""
    model = [tf.Variable(tf.zeros([400, 1000]), name="large"), tf.Variable(0.0)]

    def step(batch: Any) -> None:
        for _ in range(6):
            descend(model, lambda: tf.reduce_sum(model[0]) * tf.reduce_sum(batch) + model[1])

    run = ready(mode, step)
    for number in range(2):
        run(own_data(number))
    return model


@quiet
def a_loop_within_the_function(mode: str) -> Any:
    model = weights()

    def step(batch: Any) -> None:
        for _ in tf.range(4):
            descend(model, lambda: loss_of(model, batch))

    run = ready(mode, step)
    for number in range(3):
        run(own_data(number))
    return model


@quiet
def other_shapes_of_batches(mode: str) -> Any:
    """So that the function is traced anew, on one rank at another time."""
    model = weights()
    run = ready(mode, lambda batch: descend(model, lambda: loss_of(model, batch)))
    for number in range(8):
        run(own_data(number)[: 5 if number < 2 + hvd.rank() else 3])
    return model


@CASES.add
def modules_with_a_step_of_training_are_saved() -> None:
    """A loaded module trains as well, and compares nothing."""

    class Module(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable([1.0, 2.0])

        @tf.function(input_signature=[tf.TensorSpec([2])])  # type: ignore[untyped-decorator]
        def train(self, batch: Any) -> None:
            descend([self.weight], lambda: tf.reduce_sum(self.weight * batch))

    module = Module()
    ones = tf.ones([2])
    for _ in range(STEPS):
        module.train(ones)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        again = tf.saved_model.load(folder)
        for _ in range(STEPS):
            again.train(ones)
    np.testing.assert_allclose(again.weight.numpy(), [0.0, 1.0], atol=1e-6)


@CASES.add
def newcomers_are_compared_in_their_first_world() -> None:
    """The process that joins has synchronised its state, and then it has not. Functions live on."""
    if hvd.size() != 2:
        return
    model = weights()
    hvd.broadcast_variables(model, 0)
    run = tf.function(lambda batch: descend(model, lambda: loss_of(model, batch)))

    def join(synchronised: bool) -> Any:
        hvd.shutdown()
        hvd.init()
        if is_last():
            broadcasts.happened = False
            for variable in model:
                variable.assign(variable + 1.0)
        if synchronised:
            hvd.elastic.TensorFlowState(model).sync()
        for number in range(STEPS):
            run(own_data(number))
        return model

    is_passed_over(functools.partial(join, True))
    is_named(functools.partial(join, False), "in 2 of 2 tensors", "rank {last} never called")


@CASES.add
def members_that_do_not_compare_are_named_in_bounded_time() -> None:
    """A difference shall be an error, and one rank does not look."""
    if hvd.size() != 2:
        return
    with setting("off" if is_last() else "error"), mock.patch.object(replicas, "_PATIENCE_S", 1.0):
        match = "[sS]hut down" if is_last() else "Set HOROVOD_REPLICA_CHECK alike on all ranks"
        with pytest.raises(tf.errors.UnknownError, match=match):
            train("function", weights())
        hvd.shutdown()
    hvd.init()


@CASES.add
def steps_of_each_rank_that_adasum_combines_are_not_compared() -> None:
    if hvd.size() & (hvd.size() - 1):
        return
    settle()
    model = weights()
    hvd.broadcast_variables(model, 0)
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), op=hvd.Adasum)
    with listening() as lines:
        for number in range(STEPS):
            with tf.GradientTape() as tape:
                loss = loss_of(model, own_data(number))
            optimizer.apply_gradients(zip(tape.gradient(loss, model), model, strict=True))
        settle()
    assert everywhere(lines) == [[]] * hvd.size()
