"""Comparison of replicas in `fit`: what makes them differ is named, and what only looks like it is passed
over."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import backend, hvd, keras
from tests.contract.replica_reports import everywhere, is_named, is_passed_over, setting
from tests.contract.world import Cases

from horovod.errors import ReplicasDifferError
from horovod.gradients.replicas import broadcasts

CASES = Cases()
FULL = bool(os.environ.get("FARANDOLE_FULL_MATRIX"))


def is_last() -> bool:
    return bool(hvd.rank() == hvd.size() - 1)


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(hvd.rank())
    return rng.normal(size=(24, 8)).astype("float32"), rng.normal(size=(24, 3)).astype("float32")


def model_of(*middle: Any, seed: int = 0) -> Any:
    keras.utils.set_random_seed(seed)
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.layers.Input((8,)), dense(6, name="first"), *middle, dense(3, name="last")]
    )


def fit(model: Any, optimizer: Any, callbacks: Any = (), broadcast: bool = True, **compiling: Any) -> Any:
    """Two epochs of three steps."""
    model.compile(optimizer, "mae", **compiling)
    if broadcast:
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
    model.fit(*data(), batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=list(callbacks))
    return model


def distributed(kind: str = "SGD", **options: Any) -> Any:
    return hvd.DistributedOptimizer(getattr(keras.optimizers, kind)(0.01, **options))


# -- what makes replicas differ -----------------------------------------------------------------------------


def forgotten_broadcast() -> Any:
    broadcasts.happened = False  # other cases of this process have broadcast
    return fit(model_of(seed=hvd.rank()), distributed(), broadcast=False)


def written_on_one_rank() -> Any:
    class Write(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and is_last():
                layer = self.model.get_layer("last")
                kernel, bias = layer.get_weights()
                layer.set_weights([kernel, bias + 1e-3])

    return fit(model_of(), distributed(), [Write()])


def optimizer_not_wrapped() -> Any:
    optimizer = keras.optimizers.SGD(0.01)
    hvd.DistributedOptimizer(optimizer)
    return fit(model_of(), optimizer)


DIFFERENT: dict[Callable[[], Any], tuple[str, ...]] = {
    forgotten_broadcast: ("after step 1 rank {last}", "no rank has called hvd.broadcast_variables"),
    optimizer_not_wrapped: ("the last 2 batches have exchanged nothing", "hvd.load_model"),
    written_on_one_rank: ("in 1 of 4 tensors: ", "last/bias", "equal after step 2", "written outside"),
}
for case, words in DIFFERENT.items():
    CASES.add_as(f"replicas_{case.__name__}", functools.partial(is_named, case, *words))


@CASES.add
def replicas_that_differ_end_fit_on_every_rank() -> None:
    """Each framework reports the exception in its own way: by its class, or with the name of the class."""
    with setting("error"):
        error: Any = ReplicasDifferError if backend() == "torch" else Exception
        with pytest.raises(error, match="Replicas differ: after step 1") as caught:
            fit(model_of(seed=hvd.rank()), distributed(), broadcast=False)
        assert "ReplicasDifferError" in f"{caught.type.__name__} {caught.value}"
        assert all(everywhere(True))
        with pytest.raises(ReplicasDifferError, match="Replicas differ: after step 1"):
            elastically(functools.partial(fit, model_of(seed=hvd.rank()), distributed(), broadcast=False))


def elastically(train: Callable[[], Any]) -> None:
    """Call ``train`` as ``hvd.elastic.run`` does, which translates what frameworks raise."""
    model = model_of()
    model.compile(distributed(), "mae")
    state = hvd.elastic.KerasState(model)
    hvd.elastic.run(lambda state: train())(state)


# -- what only looks like it --------------------------------------------------------------------------------


def quiet(gate: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(case: Callable[[], Any]) -> Callable[[], Any]:
        if FULL or gate:
            CASES.add_as(f"replicas_quiet_{case.__name__}", functools.partial(is_passed_over, case))
        return case

    return add


@quiet(gate=True)
def layers_with_states_of_their_own() -> Any:
    """Dropout and the moving statistics of BatchNormalization."""
    middle = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1 + hvd.rank())]
    return fit(model_of(*middle, seed=hvd.rank()), distributed("Adam"))


@quiet(gate=True)
def decay_and_averages_of_weights() -> Any:
    """Of which the first is no gradient, and takes place while gradients are exchanged."""
    return fit(model_of(), distributed("AdamW", weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2))


@quiet(gate=True)
def several_steps_in_one_execution() -> Any:
    several: dict[str, Any] = {} if backend() == "torch" else {"steps_per_execution": 3}
    return fit(model_of(), distributed("Adam"), **several)


@quiet()
def frozen_layers_and_those_that_thaw() -> Any:
    model = model_of()
    model.get_layer("first").trainable = False
    model.get_layer("first").set_weights(
        [each + hvd.rank() for each in model.get_layer("first").get_weights()]
    )
    fit(model, distributed())
    model.get_layer("first").trainable = True
    return fit(model, distributed())


@quiet()
def layers_of_each_rank() -> Any:
    model = model_of()
    first = model.get_layer("first")
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=first)
    fit(model, optimizer, broadcast=False)
    kernels = everywhere(first.get_weights()[0].tolist())
    assert kernels[0] != kernels[-1]
    return model


@quiet()
def weights_of_mixed_precision() -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return fit(model_of(), distributed("Adam"))
    finally:
        keras.config.set_dtype_policy("float32")


@quiet()
def a_tape_in_a_step_of_its_own() -> Any:
    """With a plain optimizer, which exchanges nothing."""
    if backend() != "tensorflow":
        return fit(model_of(), distributed())
    import tensorflow as tf

    import horovod.tensorflow as tensorflow_hvd

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            weights = self.trainable_variables
            gradients = tensorflow_hvd.DistributedGradientTape(tape).gradient(loss, weights)
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"loss": loss}

    keras.utils.set_random_seed(0)
    return fit(Own([keras.layers.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.SGD(0.01))


@quiet()
def several_passes_for_one_step() -> Any:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), backward_passes_per_step=2)
    return fit(model_of(), optimizer)


@quiet()
def two_networks_that_take_turns() -> Any:
    first, second = model_of(), model_of(seed=1)
    for model in (first, second):
        model.compile(distributed("Adam"), "mae")
        hvd.broadcast_variables(model.weights, 0)
    x, y = data()
    for step in range(6):
        for model in (first, second, second):
            model.train_on_batch(x[step::6], y[step::6])
    return first, second


@quiet()
def a_model_that_is_compiled_again() -> Any:
    model = fit(model_of(), distributed())
    return fit(model, distributed("Adam"))


@quiet()
def a_schedule_and_a_warmup() -> Any:
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
        hvd.callbacks.MetricAverageCallback(),
    ]
    return fit(model_of(), distributed("SGD", momentum=0.9), callbacks)


@quiet()
def a_set_of_one_rank_beside_all() -> Any:
    """Whose model is its own: nobody compares it."""
    members = hvd.add_process_set([0])
    own = model_of(seed=hvd.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=members)
    fit(own, optimizer, broadcast=False)
    hvd.remove_process_set(members)
    return own, fit(model_of(), distributed())
