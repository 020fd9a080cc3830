"""Keras 2, as `tf_keras`: the optimizers of 2.11 and later, and those before."""

from __future__ import annotations

import functools
import importlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.contract.keras.lazy import tf, tf_hvd, tf_keras
from tests.contract.keras.models import dense_model
from tests.contract.replica_reports import is_named, is_passed_over
from tests.contract.world import Cases

FRAMEWORK = "horovod.tensorflow.keras"
CASES = Cases()


def families() -> list[Any]:
    return [tf_keras.optimizers, tf_keras.optimizers.legacy]


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(tf_hvd.rank())
    return rng.normal(size=(32, 8)).astype("float32"), rng.normal(size=(32, 3)).astype("float32")


@CASES.add
def fit_trains_alike_on_all_ranks_with_every_callback() -> None:
    for optimizers in families():
        for passes in (1, 2):
            model = dense_model(tf_hvd.rank(), tf_keras)
            wrapped = tf_hvd.DistributedOptimizer(
                optimizers.SGD(0.1, momentum=0.5), backward_passes_per_step=passes
            )
            assert type(wrapped).__name__ == "SGD"
            model.compile(wrapped, "mse")
            callbacks = tf_hvd.callbacks
            history = model.fit(
                *data(),
                batch_size=16,
                epochs=3,
                verbose=0,
                callbacks=[
                    callbacks.BroadcastGlobalVariablesCallback(1),
                    callbacks.MetricAverageCallback(),
                    callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2),
                    callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=2),
                ],
            ).history
            np.testing.assert_allclose(history["lr"], [0.075, 0.1, 0.1], rtol=1e-5)
            everybody = tf_hvd.allgather_object((model.get_weights(), history), name="legacy")
            for ours, theirs in zip(everybody[0][0], everybody[1][0], strict=True):
                np.testing.assert_array_equal(ours, theirs)
            assert everybody[0][1] == everybody[1][1]
            assert int(model.optimizer.iterations.numpy()) == 6


@CASES.add
def gradients_are_reduced_where_they_are_computed() -> None:
    newer, older = families()
    rank = float(tf_hvd.rank())
    for kind, compute in (
        (newer.SGD, "compute_gradients"),
        (newer.SGD, "_compute_gradients"),
        (older.SGD, "_compute_gradients"),
    ):
        optimizer = tf_hvd.DistributedOptimizer(kind(1.0))
        assert "horovod._keras" in str(optimizer)
        assert type(optimizer).__module__ == kind.__module__

        def of_a_graph(optimizer: Any = optimizer) -> Any:
            weight = tf.constant([2.0])
            return optimizer.get_gradients(tf.reduce_sum(rank * weight), [weight])

        if kind is newer.SGD:
            np.testing.assert_allclose(tf.function(of_a_graph)()[0].numpy(), [0.5])
        value, local = tf.Variable([1.0]), tf.Variable([1.0])
        optimizer.register_local_var(local)

        def loss(value: Any = value, local: Any = local) -> Any:
            return tf.reduce_sum(rank * (value + local))

        pairs = getattr(optimizer, compute)(loss, [value, local])
        np.testing.assert_allclose([float(gradient[0]) for gradient, _ in pairs], [0.5, rank / 2])
        # Not reduced again.
        optimizer.apply_gradients([(tf.constant([rank]), value)])
        np.testing.assert_allclose(value.numpy(), [1.0 - rank])
        optimizer.minimize(loss, [value])
        np.testing.assert_allclose(value.numpy(), [0.5 - rank])
        config = optimizer.get_config()
        assert type(optimizer).from_config(config).get_config() == config


@CASES.add
def a_class_of_the_user_is_wrapped_whatever_its_constructor_wants() -> None:
    for optimizers in families():

        class Needy(optimizers.SGD):  # type: ignore[misc, name-defined]
            def __init__(self, rate: float, *, floor: float) -> None:
                super().__init__(rate, momentum=0.5)
                self.floor = floor

        class Forgetful(optimizers.SGD):  # type: ignore[misc, name-defined]
            floor = 0.0  # set later, and no part of the configuration

        forgetful = Forgetful(0.5, momentum=0.5)
        forgetful.floor = 0.25
        for given in (Needy(0.5, floor=0.25), forgetful):
            optimizer = tf_hvd.DistributedOptimizer(given)
            value = tf.Variable([1.0])
            for _ in range(2):
                optimizer.minimize(lambda value=value: tf.reduce_sum(2.0 * tf_hvd.rank() * value), [value])
            np.testing.assert_allclose(value.numpy(), [1.0 - 0.5 - 0.75])
            assert optimizer.floor == 0.25


@CASES.add
def gradients_of_a_class_of_the_user_are_reduced() -> None:
    """The gradients that its own methods compute, whatever Keras itself would compute."""
    rank = float(tf_hvd.rank())
    for optimizers in families():

        class Constant(optimizers.SGD):  # type: ignore[misc, name-defined]
            def get_gradients(self, loss: Any, params: Any) -> list[Any]:
                return [tf.fill([1], rank + 7.0) for _ in params]

            def _compute_gradients(self, loss: Any, var_list: Any, *_: Any, **__: Any) -> list[Any]:
                return [(tf.fill([1], rank + 5.0), variable) for variable in var_list]

        optimizer = tf_hvd.DistributedOptimizer(Constant(1.0), process_set=tf_hvd.global_process_set)
        value = tf.Variable([1.0])
        for gradient, number in (
            (optimizer.get_gradients(None, [value])[0], 7.5),
            (optimizer._compute_gradients(None, [value])[0][0], 5.5),
        ):
            np.testing.assert_allclose(gradient.numpy(), [number])


@CASES.add
def local_tables_of_other_sizes_are_never_exchanged() -> None:
    """Sparse gradients of tables with as many rows as the rank likes, beside a variable that members of a
    process set have in common."""
    rank, ranks = tf_hvd.rank(), tf_hvd.size()
    some = tuple(range(0, ranks, 2)) if ranks > 2 else (ranks - 1,)
    sets = {some: tf_hvd.add_process_set(list(some)), tuple(range(ranks)): tf_hvd.global_process_set}
    # Settings, whether local gradients are divided, and whether a function makes the step.
    kinds = [({}, False, False), ({"sparse_as_dense": True}, False, False), ({}, True, False)]
    ways = [(some, *kind) for kind in (*kinds, ({}, False, True))]
    ways += [(tuple(range(ranks)), *kind) for kind in kinds]
    for optimizers, (members, options, scaled, in_function) in itertools.product(families(), ways):
        optimizer = tf_hvd.DistributedOptimizer(
            optimizers.SGD(1.0), process_set=sets[members], scale_local_gradients=scaled, **options
        )
        rows = rank + 2
        table, common = tf.Variable(tf.zeros([rows, 2 + rank])), tf.Variable([0.0])
        optimizer.register_local_var(table)
        optimizer.iterations  # noqa: B018  (which is a variable, made when it is asked for)

        def loss(table: Any = table, common: Any = common, rows: int = rows) -> Any:
            return tf.reduce_sum(tf.gather(table, [rows - 1])) + rank * tf.reduce_sum(common)

        def step(optimizer: Any = optimizer, variables: Any = (table, common), loss: Any = loss) -> None:
            optimizer.minimize(loss, list(variables))

        (tf.function(step) if in_function else step)()
        share = len(members) if scaled and rank in members else 1
        np.testing.assert_allclose(table.numpy()[:-1], 0.0)
        np.testing.assert_allclose(table.numpy()[-1], -1.0 / share, rtol=1e-6)
        np.testing.assert_allclose(common.numpy(), [-np.mean(members) if rank in members else -rank])
    tf_hvd.remove_process_set(sets[some])


def train_by_hand(optimizer: Any, model: Any, wrap: Any, in_function: bool) -> Any:
    """A loop with ``apply_gradients``, whose tape comes from ``wrap``."""
    optimizer.iterations  # noqa: B018  (a variable, made when it is asked for)

    def step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(batch * model[0]))
        gradients = [2.0 * gradient for gradient in wrap(tape).gradient(loss, model)]
        optimizer.apply_gradients(list(zip(gradients, model, strict=True)))

    run = tf.function(step) if in_function else step
    for number in range(5):
        run(tf.constant([float(tf_hvd.rank() + number)]))
    return model, optimizer


@CASES.add
def loops_that_exchange_nothing_are_named() -> None:
    """The optimizer is wrapped, the tape is not; and then the tape alone exchanges."""
    tape = importlib.import_module("horovod.tensorflow").DistributedGradientTape
    for optimizers, in_function in zip(families(), (True, False), strict=True):
        model = [tf.Variable([1.0], name="slope")]
        optimizer = tf_hvd.DistributedOptimizer(optimizers.SGD(1e-3))
        settled = functools.partial(train_by_hand, optimizer, model, lambda tape: tape, in_function)
        is_named(settled, "in 1 of 1 tensors: slope", "hvd.DistributedGradientTape(tape)")
        model, optimizer = [tf.Variable([1.0])], tf_hvd.DistributedOptimizer(optimizers.SGD(1e-3))
        is_passed_over(functools.partial(train_by_hand, optimizer, model, tape, in_function))


@CASES.add
def passes_are_summed_in_functions() -> None:
    newer, older = families()
    for kind, compute in ((newer.SGD, "compute_gradients"), (older.SGD, "_compute_gradients")):
        for average, factor in ((True, 0.5), (False, 1.0)):
            optimizer = tf_hvd.DistributedOptimizer(
                kind(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            value = tf.Variable([0.0])

            @tf.function  # type: ignore[untyped-decorator]
            def step(
                number: Any, optimizer: Any = optimizer, value: Any = value, compute: Any = compute
            ) -> None:
                pairs = getattr(optimizer, compute)(lambda: tf.reduce_sum(number * value), [value])
                optimizer.apply_gradients(pairs)

            for done in range(1, 5):
                step(tf.constant(done + float(tf_hvd.rank())))
                total = sum(range(1, done // 2 * 2 + 1)) + done // 2 * 2 * 0.5
                np.testing.assert_allclose(value.numpy(), [-factor * total])
                assert int(optimizer.iterations.numpy()) == done
                assert int(optimizer._agg_helper.counter.numpy()) == done % 2


@CASES.add
def models_load_with_distributed_optimizers() -> None:
    for optimizers in families():
        legacy = optimizers is families()[1]
        model = dense_model(1, tf_keras)
        model.compile(tf_hvd.DistributedOptimizer(optimizers.Adam(0.125)), "mse")
        model.fit(*data(), batch_size=16, epochs=1, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            # The older ones lose their state in .keras files also without Horovod.
            path = str(Path(folder, "model.h5" if legacy else "model.keras"))
            model.save(path)
            again = tf_hvd.load_model(path, legacy_opts=legacy)
        assert type(again.optimizer).__name__ == "Adam"
        assert again.optimizer._horovod_settings is not None
        assert int(again.optimizer.iterations.numpy()) == 2
        again.fit(*data(), batch_size=16, epochs=1, verbose=0)
        assert int(again.optimizer.iterations.numpy()) == 4


@CASES.add
def states_are_synchronized_and_restored() -> None:
    for optimizers in families():
        model = dense_model(1, tf_keras)
        model.compile(tf_hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.5)), "mse")
        state = tf_hvd.elastic.KerasState(model, batch=tf_hvd.rank())
        for weight in model.weights:
            weight.assign(np.full(weight.shape, 1.0 + tf_hvd.rank(), "float32"))
        state.sync()
        assert all((weight == 1.0).all() for weight in model.get_weights())
        for weight in model.weights:
            weight.assign(np.full(weight.shape, 5.0, "float32"))
        state.restore()
        assert all((weight == 1.0).all() for weight in model.get_weights())
        assert state.batch == 0


@CASES.add
def sessions_train() -> None:
    """The optimizers of before, in a graph with the session of Keras."""
    older = families()[1]
    with tf.Graph().as_default():
        model = dense_model(tf_hvd.rank(), tf_keras)
        model.compile(tf_hvd.DistributedOptimizer(older.SGD(0.1)), "mse")
        broadcast = tf_hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(*data(), batch_size=16, epochs=2, verbose=0, callbacks=[broadcast])
        weights = model.get_weights()
        np.testing.assert_allclose(tf_hvd.allreduce([float(tf_hvd.rank())], name="session"), [0.5])
    everybody = tf_hvd.allgather_object(weights, name="session")
    for ours, theirs in zip(*everybody, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@CASES.add
def passes_are_summed_in_sessions() -> None:
    older = families()[1]
    rank, mean = float(tf_hvd.rank()), (tf_hvd.size() - 1) / 2
    with tf.Graph().as_default():
        layer = tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(1,))
        model = tf_keras.Sequential([layer])
        optimizer = tf_hvd.DistributedOptimizer(older.SGD(1.0), backward_passes_per_step=2)
        model.compile(optimizer, lambda _, predicted: tf.reduce_mean(predicted))
        batch = np.full((4, 1), rank, "float32")
        for done in range(1, 6):
            model.train_on_batch(batch, batch)
            np.testing.assert_allclose(model.get_weights()[0], [[-(done // 2 * 2) * mean]])
            assert tf_keras.backend.get_value(model.optimizer.iterations) == done
