"""States of elastic training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import backend, hvd, keras, tf
from tests.contract.keras.models import data, dense_model
from tests.contract.world import Cases

CASES = Cases()


def fill(variables: Any, value: float) -> None:
    for variable in variables:
        variable.assign(np.full(variable.shape, value, "float32"))


def holds(variables: Any, value: float) -> bool:
    return all((np.asarray(variable.numpy()) == value).all() for variable in variables)


def slots(model: Any) -> list[Any]:
    return [each for each in model.optimizer.variables if each.shape]


def check(state: Any, variables: list[Any]) -> None:
    """`variables` hold 1 on rank 0 and 2 elsewhere, `batch` and `epoch` its rank."""
    state.sync()
    assert holds(variables, 1.0)
    assert (state.batch, state.epoch) == (0, 0)
    fill(variables, 5.0)
    state.batch, state.epoch = 7, 8
    state.restore()
    assert holds(variables, 1.0)
    assert (state.batch, state.epoch) == (0, 0)
    fill(variables, 5.0)
    state.batch, state.epoch = 7, 8
    state.commit()
    fill(variables, 6.0)
    state.batch = 9
    state.restore()
    assert holds(variables, 5.0)
    assert (state.batch, state.epoch) == (7, 8)


@CASES.add
def states_of_models_are_synchronized_restored_and_committed() -> None:
    model = dense_model()
    # Not built: the state does that.
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)), "mse")
    state = hvd.elastic.KerasState(model, batch=hvd.rank(), epoch=hvd.rank())
    assert slots(model)
    variables = [*model.weights, *slots(model)]
    fill(variables, 1.0 + (hvd.rank() > 0))
    check(state, variables)
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


@CASES.add
def states_of_tensorflow_variables() -> None:
    if backend() != "tensorflow":
        return
    from horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState

    variables = [tf.Variable(tf.fill([2], 1.0 + (hvd.rank() > 0))), tf.Variable(1.0 + (hvd.rank() > 0))]
    check(TensorFlowState(variables, batch=hvd.rank(), epoch=hvd.rank()), variables)
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        one = tf.compat.v1.get_variable("one", initializer=tf.fill([2], 1.0 + (hvd.rank() > 0)))
        session.run(tf.compat.v1.global_variables_initializer())
        state = TensorFlowState(session=session, batch=hvd.rank())
        state.sync()
        assert (session.run(one) == 1.0).all()
        one.load([5.0, 5.0], session)
        state.restore()
        assert (session.run(one) == 1.0).all()
    model = dense_model()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    kept = TensorFlowKerasState(model, batch=hvd.rank(), epoch=hvd.rank())
    fill(model.weights, 1.0 + (hvd.rank() > 0))
    check(kept, model.weights)


def dropping(seed: int | None) -> Any:
    layers = [keras.Input((64,)), keras.layers.Dropout(0.5, seed=seed), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def mask(model: Any) -> list[bool]:
    dropped = model.layers[0](np.ones((1, 64), "float32"), training=True)
    kept: list[bool] = (np.asarray(keras.ops.convert_to_numpy(dropped)) != 0).ravel().tolist()
    return kept


@CASES.add
def dropout_draws_again_what_it_drew_after_the_commit() -> None:
    for seed in (None, 3 + hvd.rank()):
        model = dropping(seed)
        state = hvd.elastic.KerasState(model)
        state.sync()
        mask(model)
        state.commit()
        drawn = [mask(model) for _ in range(3)]
        assert drawn[0] != drawn[1]
        for _ in range(2):
            state.restore()
            assert [mask(model) for _ in range(3)] == drawn
        if seed is not None:
            assert hvd.allgather_object(drawn).count(drawn) == 1, "ranks draw their own"


@CASES.add
def a_newcomer_with_the_seed_of_a_lost_rank_draws_what_that_would_have_drawn() -> None:
    lost = dropping(7 + hvd.rank())
    expected = [mask(lost) for _ in range(4)]
    model = dropping(7 + hvd.rank())
    if hvd.rank() == 0:
        assert [mask(model) for _ in range(3)] == expected[:3]
    state = hvd.elastic.KerasState(model)
    state.sync()
    assert mask(model) == expected[3]
    state.restore()
    assert mask(model) == expected[3]


@CASES.add
def ranks_keep_the_sums_of_a_step_that_is_not_finished() -> None:
    model = dense_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    model.compile(optimizer, "mse")
    state = hvd.elastic.KerasState(model)
    state.sync()
    first = [weight.numpy().copy() for weight in model.weights]

    def one_pass() -> None:
        gradients = [keras.ops.full(each.shape, 1.0 + hvd.rank(), "float32") for each in model.weights]
        optimizer.apply(gradients, model.trainable_weights)

    def step(whole: float) -> None:
        for weight, old in zip(model.weights, first, strict=True):
            np.testing.assert_allclose(weight.numpy(), old - whole, atol=1e-5)

    one_pass()
    state.commit()
    one_pass()
    state.restore()
    state.sync()
    one_pass()
    mean = 1.0 + (hvd.size() - 1) / 2
    step(2 * mean)
    state.restore()
    if hvd.rank() != 0:  # it is replaced, and takes over the pass of rank 0
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        model.compile(optimizer, "mse")
        state = hvd.elastic.KerasState(model)
    state.sync()
    one_pass()
    step(1.0 + mean)


@CASES.add
def the_loss_scaling_around_a_given_optimizer_is_kept() -> None:
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = dense_model()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mse")
        state = hvd.elastic.KerasState(model, optimizer)
        around = model.optimizer
        assert around.inner_optimizer is optimizer
        assert state.optimizer is optimizer
        if hvd.rank() == 0:
            around.dynamic_scale.assign(64.0)
        state.sync()
        assert float(around.dynamic_scale.numpy()) == 64.0
        around.dynamic_scale.assign(8.0)
        state.restore()
        assert float(around.dynamic_scale.numpy()) == 64.0
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


@CASES.add
def positions_of_iterators_of_tensorflow() -> None:
    if backend() != "tensorflow":
        return
    from horovod.tensorflow.elastic import TensorFlowState

    def numbers() -> Any:
        dataset = tf.data.Dataset.range(100).shard(hvd.size(), hvd.rank())
        return iter(dataset.shuffle(8, seed=1, reshuffle_each_iteration=False).batch(2))

    def read(state: Any, count: int) -> list[list[int]]:
        return [next(state.data).numpy().tolist() for _ in range(count)]

    makers: list[Callable[[Any], Any]] = [
        lambda data: TensorFlowState([tf.Variable(1.0)], data=data, step=0),
        lambda data: hvd.elastic.KerasState(dropping(None), data=data, step=0),
    ]
    for make in makers:
        source = numbers()
        all_of_it = [batch.numpy().tolist() for batch in numbers()]
        state = make(source)
        state.sync()
        assert read(state, 2) == all_of_it[:2]
        state.commit()
        for _ in range(2):
            assert read(state, 3) == all_of_it[2:5]
            state.restore()
            assert state.data is source
        state.sync()  # each rank keeps its own part
        assert read(state, 1) == all_of_it[2:3]
        state.restore()
        # All but rank 0 are replaced.
        if hvd.rank() != 0:
            state = make(numbers())
        state.sync()
        first = read(state, 1)
        state.restore()
        assert read(state, 1) == first
        of_rank_0 = hvd.broadcast_object(all_of_it[2:3])
        assert first == of_rank_0, f"{first} is not {of_rank_0}, what rank 0 had in its buffer"
        # Another one, for instance of another number of ranks.
        state.data = numbers()
        read(state, 1)
        state.restore()
        assert read(state, 1) == all_of_it[:1]
    without_seed = iter(tf.data.Dataset.range(3).map(lambda _: tf.random.uniform(())))
    with pytest.raises(ValueError, match=r"'data' cannot be saved.*external_state_policy"):
        TensorFlowState([], data=without_seed)


@CASES.add
def generators_of_tensorflow_are_kept_by_each_rank() -> None:
    if backend() != "tensorflow":
        return
    from horovod.tensorflow.elastic import TensorFlowState

    generator = tf.random.Generator.from_seed(5 + hvd.rank())
    state: Any = TensorFlowState([tf.Variable(1.0)], generator=generator)
    state.sync()
    state.commit()
    drawn = generator.normal([3]).numpy().tolist()
    state.restore()
    state.sync()
    assert state.generator is generator
    assert generator.normal([3]).numpy().tolist() == drawn
    assert hvd.allgather_object(drawn).count(drawn) == 1


@CASES.add
def callbacks_keep_batch_and_epoch_and_commit() -> None:
    x, y = data(0, 48)
    model = dense_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=2)
    seen = []

    class Commits(hvd.elastic.CommitStateCallback):  # type: ignore[misc]
        def commit(self) -> None:
            seen.append((self.state.epoch, self.state.batch))
            super().commit()

    model.fit(
        x,
        y,
        batch_size=16,
        epochs=2,
        verbose=0,
        callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            Commits(state, batches_per_commit=2),
        ],
    )
    assert seen == [(2, 1), (3, 0), (3, 0), (3, 2), (4, 0)]
    assert (state.epoch, state.batch) == (4, 0)


@CASES.add
def the_rest_of_an_epoch_counts_on() -> None:
    x, y = data(0, 96)
    model = dense_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    seen: list[int] = []

    class Commits(hvd.elastic.CommitStateCallback):  # type: ignore[misc]
        def commit(self) -> None:
            seen.append(self.state.batch)
            if len(seen) in (3, 5):
                raise InterruptedError
            super().commit()

    def fit(skipped: int) -> None:
        callbacks = [hvd.elastic.UpdateBatchStateCallback(state), Commits(state)]
        model.fit(x[16 * skipped :], y[16 * skipped :], batch_size=16, verbose=0, callbacks=callbacks)

    for _ in range(2):
        with pytest.raises(InterruptedError):
            fit(state.batch)
    assert seen == [0, 1, 2, 2, 3]
    fit(state.batch)
    assert seen[5:] == [3, 4, 5, 0]
    assert state.batch == 0
    fit(0)
    assert seen[9:] == [0, 1, 2, 3, 4, 5, 0]


@CASES.add
def a_failure_within_a_step_is_known_as_one_of_ours() -> None:
    """Ranks disagree about a gradient: the errors that frameworks make of it must restart training."""
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(hvd.rank() + 1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((4, 8), "float32")
    y = np.ones((4, hvd.rank() + 1), "float32")

    from horovod._keras.frameworks import framework

    with pytest.raises(Exception) as caught:
        model.fit(x, y, batch_size=4, verbose=0)
    failure = framework(backend()).own_failure(caught.value)
    assert isinstance(failure, hvd.HorovodInternalError), caught.value
    assert framework(backend()).own_failure(RuntimeError("another")) is None


@CASES.add
def a_call_without_a_world_is_not_tried_again() -> None:
    """That is an error of the script; a new world would not mend it."""
    from horovod._keras.frameworks import framework

    hvd.shutdown()
    try:
        calls: list[Callable[[], Any]] = [lambda: hvd.allreduce(1.0), lambda: hvd.broadcast(1.0, 0)]
        for call in calls:
            with pytest.raises(Exception, match=r"hvd\.init\(\)") as caught:
                call()
            failure = framework(backend()).own_failure(caught.value)
            assert failure is None or not failure.recoverable
    finally:
        hvd.init()
