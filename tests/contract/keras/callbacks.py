"""The callbacks, within `fit`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import hvd, keras
from tests.contract.keras.models import (
    BATCH,
    assert_same_everywhere,
    data,
    dense_model,
    own_share,
    weights_of,
)
from tests.contract.world import Cases

CASES = Cases()


def compiled(model: Any = None, optimizer: Any = None, **options: Any) -> Any:
    model = dense_model(seed=hvd.rank()) if model is None else model
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5) if optimizer is None else optimizer
    model.compile(hvd.DistributedOptimizer(optimizer, **options), "mse")
    return model


@CASES.add
def twenty_epochs_of_warm_up_and_schedules() -> None:
    initial = 0.1 * hvd.size()
    x, y = data(hvd.rank(), 32)
    schedule = hvd.callbacks.LearningRateScheduleCallback
    model = compiled()
    seen = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(self.model.optimizer.learning_rate.numpy()))

    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=20,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(initial, warmup_epochs=5),
            schedule(initial, 0.1, start_epoch=5, end_epoch=10),
            schedule(initial, 0.01, start_epoch=10, end_epoch=15),
            schedule(initial, lambda epoch: 0.1 ** (epoch // 5), start_epoch=15),
            Rates(),
        ],
    ).history
    rates = history["lr"]
    assert rates == history["learning_rate"]
    size, warm = hvd.size(), np.arange(1, 11)
    np.testing.assert_allclose(seen[:10], initial / size * (warm / 10 * (size - 1) + 1), rtol=1e-5)
    np.testing.assert_allclose(rates[5:10], initial * 0.1 ** np.arange(5), rtol=1e-5)
    np.testing.assert_allclose(rates[10:15], initial * 0.01 ** np.arange(5), rtol=1e-5)
    np.testing.assert_allclose(rates[15:], initial * 0.1**3, rtol=1e-5)
    everybody = hvd.allgather_object(history["loss"], name="losses")
    assert everybody[0] == everybody[-1]
    assert_same_everywhere(weights_of(model), "twenty")


@CASES.add
def the_root_may_be_any_rank_and_local_variables_stay() -> None:
    x, y = data(0, 8)
    for passes in (1, 2):
        model = dense_model()
        for weight in model.weights:
            weight.assign(np.full(weight.shape, hvd.rank(), "float32"))
        local = model.layers[0].weights
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.0), backward_passes_per_step=passes), "mse"
        )
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(hvd.size() - 1, local_variables=local)
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=[callback])
        assert callback.broadcast_done
        for weight in model.weights:
            own = any(weight is each for each in local)
            expected = hvd.rank() if own else hvd.size() - 1
            np.testing.assert_array_equal(weight.numpy(), np.full(weight.shape, expected, "float32"))
    with pytest.raises(ValueError, match="local_variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables="kernel")


@CASES.add
def metrics_that_only_some_ranks_have_are_named() -> None:
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"loss": float(hvd.rank()), "acc": 1.0}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": (hvd.size() - 1) / 2, "acc": 1.0}
    with pytest.raises(
        hvd.HorovodInternalError, match=r"rank 0 has \['loss'\], rank 1 has \['acc', 'loss'\]"
    ):
        callback.on_epoch_end(1, {"loss": 1.0} if hvd.rank() == 0 else {"loss": 1.0, "acc": 1.0})


@CASES.add
def metrics_that_are_no_numbers_are_named_on_every_rank() -> None:
    callback = hvd.callbacks.MetricAverageCallback()
    with pytest.raises(ValueError, match=r"got lr \(no number but list\)\. Put"):
        callback.on_epoch_end(0, {"loss": 1.0, "lr": [1.0, 2.0]})
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 has .*loss \(no number but NoneType\)"):
        callback.on_epoch_end(0, {"loss": 1.0 if hvd.rank() == 0 else None})
    callback.on_epoch_end(0, {})


@CASES.add
def a_broadcast_within_a_step_of_two_passes_leaves_each_rank_its_sums() -> None:
    for given in ("callback", "function"):
        x, y = data(0, 2 * BATCH)
        model = compiled(dense_model(), keras.optimizers.SGD(0.1), backward_passes_per_step=2)
        alone = dense_model()
        alone.compile(keras.optimizers.SGD(0.2), "mse")  # the sum of two passes, each a mean
        alone.fit(x, y, batch_size=2 * BATCH, shuffle=False, verbose=0)

        class Broadcast(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 0:
                    hvd.broadcast_variables([*self.model.weights, *self.model.optimizer.variables], 0)

        how = Broadcast() if given == "function" else hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        own = BATCH // hvd.size()
        model.fit(own_share(x), own_share(y), batch_size=own, shuffle=False, verbose=0, callbacks=[how])
        for mine, other in zip(weights_of(model), weights_of(alone), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@CASES.add
def one_rank_loads_a_checkpoint_and_the_others_follow() -> None:
    x, y = data(0, 16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model = dense_model()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)
        model.save(path)
        fresh = compiled()
        model = hvd.load_model(path) if hvd.rank() == 0 else fresh
    model.fit(
        x,
        y,
        batch_size=16,
        epochs=1,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert int(model.optimizer.iterations.numpy()) == 3
    assert_same_everywhere(weights_of(model), "followed")
    assert_same_everywhere([each.numpy() for each in model.optimizer.variables], "state")


@CASES.add
def loaded_models_have_distributed_optimizers() -> None:
    class Custom(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    x, y = data(0, 16)
    with tempfile.TemporaryDirectory() as folder:
        wrapping = type(hvd.DistributedOptimizer(Custom(), op=hvd.Sum))
        ways: list[tuple[Any, dict[str, Any]]] = [
            (keras.optimizers.RMSprop, {}),
            (Custom, {"custom_optimizers": [Custom]}),
            (Custom, {"custom_objects": {"Custom": Custom}}),
            (Custom, {"custom_objects": {"Custom": wrapping}}),
        ]
        for number, (kind, options) in enumerate(ways):
            model = dense_model()
            model.compile(hvd.DistributedOptimizer(kind(0.03125)), "mse")
            if number == 0:
                model.fit(x, y, batch_size=16, epochs=1, verbose=0)
            else:  # what a step leaves behind is the same
                model.optimizer.build(model.trainable_variables)
            path = Path(folder, f"{number}.keras")
            model.save(path)
            again = hvd.load_model(path, **options)
            assert type(again.optimizer).__name__ == kind.__name__
            assert again.optimizer._horovod_settings.op == (hvd.Sum if number == 3 else hvd.Average)
            assert float(again.optimizer.learning_rate.numpy()) == 0.03125
            for ours, theirs in zip(
                [*again.weights, *again.optimizer.variables],
                [*model.weights, *model.optimizer.variables],
                strict=True,
            ):
                np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
            if number == 0:
                again.fit(x, y, batch_size=16, epochs=1, verbose=0)
                assert int(again.optimizer.iterations.numpy()) == 2
        with pytest.raises(ValueError, match="tf_keras"):
            hvd.load_model(path, legacy_opts=True)


@CASES.add
def momentum_is_corrected_when_the_rate_changes() -> None:
    model = compiled()
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    for velocity in optimizer.momentums:
        velocity.assign(np.ones(velocity.shape, "float32"))
    for correction, expected in ((True, 0.25), (False, 0.25)):
        callback = hvd.callbacks.LearningRateScheduleCallback(
            0.025 if correction else 0.5, lambda epoch: 1.0, momentum_correction=correction
        )
        callback.set_model(model)
        callback.on_epoch_begin(3)
        callback.on_batch_begin(0)
        for velocity in optimizer.momentums:
            np.testing.assert_allclose(velocity.numpy(), np.full(velocity.shape, expected), rtol=1e-5)
    scheduled = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))
    callback.set_model(compiled(optimizer=scheduled))
    with pytest.raises(ValueError, match="schedule"):
        callback.on_batch_begin(0)


@CASES.add
def the_best_model_goes_where_it_is_told() -> None:
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    callback.set_model(compiled())
    with pytest.raises(ValueError, match="filepath"):
        callback.on_train_begin()
    x, y = data(0, 16)
    with tempfile.TemporaryDirectory() as folder:
        callback.filepath = str(Path(folder, "best.keras"))
        compiled(dense_model()).fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[callback])
        assert Path(callback.filepath).is_file()


@CASES.add
def wrong_schedules_are_refused() -> None:
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)
    callback = hvd.callbacks.LearningRateWarmupCallback(0.1)
    callback.set_params({"steps": None})
    with pytest.raises(ValueError, match="steps_per_epoch"):
        callback.on_train_begin()
