"""Training with `fit`: several processes do what one would."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import backend, hvd, keras
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


def fitted(optimizer: Any, x: Any, y: Any, rows: int, callbacks: Any = (), **compiling: Any) -> Any:
    model = dense_model()
    model.compile(optimizer, "mse", **compiling)
    history = model.fit(
        x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks)
    ).history
    return model, history


@CASES.add
def fit_has_the_loss_curve_of_one_process_with_the_same_global_batch() -> None:
    x, y = data()
    alone, expected = fitted(keras.optimizers.Adam(0.01), x, y, BATCH)
    together, history = fitted(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        own_share(x),
        own_share(y),
        BATCH // hvd.size(),
        [hvd.callbacks.MetricAverageCallback()],
    )
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    for ours, theirs in zip(weights_of(together), weights_of(alone), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@CASES.add
def several_steps_in_one_execution_train_alike() -> None:
    if backend() == "torch":
        return  # Keras refuses it there
    x, y = own_share(data()[0]), own_share(data()[1])
    results = [
        weights_of(
            fitted(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)),
                x,
                y,
                BATCH // hvd.size(),
                steps_per_execution=steps,
            )[0]
        )
        for steps in (1, 2)
    ]
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def infinite_on_one_rank(optimizer: Any) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x, y = data(hvd.rank())
        if hvd.rank() == hvd.size() - 1:
            x[0, 0] = np.inf
        model, _ = fitted(optimizer, x, y, BATCH)
    finally:
        keras.config.set_dtype_policy("float32")
    kind = type(model.optimizer)
    assert kind.__name__ == "LossScaleOptimizer"
    # Halved in the two steps that had an infinity somewhere, on every rank.
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**13
    assert all(np.isfinite(weight).all() for weight in weights_of(model))
    assert_same_everywhere(weights_of(model), "scaled")


@CASES.add
def loss_scaling_by_keras_sees_reduced_gradients() -> None:
    infinite_on_one_rank(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))


@CASES.add
def loss_scaling_that_is_wrapped_sees_reduced_gradients() -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    infinite_on_one_rank(hvd.DistributedOptimizer(scaled))


@CASES.add
def passes_add_up_under_loss_scaling() -> None:
    if backend() == "jax":
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), backward_passes_per_step=2
        )
        with pytest.raises(ValueError, match="not supported with loss scaling on JAX"):
            fitted(optimizer, *data(), BATCH)
        return
    optimizer = keras.optimizers.LossScaleOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), backward_passes_per_step=2)
    )
    model, _ = fitted(optimizer, *data(hvd.rank()), BATCH)
    assert int(np.asarray(model.optimizer.iterations.numpy())) == 8
    assert_same_everywhere(weights_of(model), "scaled.passes")


@CASES.add
def compilation_by_xla_is_turned_off_by_callbacks_and_refused_without() -> None:
    if backend() != "tensorflow":
        return  # elsewhere the exchange can be part of it
    x, y = data()
    with pytest.warns(UserWarning, match="jit_compile"):
        model, _ = fitted(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)),
            x,
            y,
            BATCH,
            [hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
            jit_compile=True,
        )
    assert not model.jit_compile
    with pytest.raises(hvd.HorovodInternalError, match="jit_compile=False"):
        fitted(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), x, y, BATCH, jit_compile=True)


@CASES.add
def compiled_steps_train_on_torch() -> None:
    if backend() != "torch":
        return
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    from horovod.torch import keras_adapter

    # What torch.compile makes of it is slow to have; that it leaves the exchange alone is what counts.
    reduce = optimizer._reduction._reduce
    assert getattr(reduce, "_torchdynamo_disable", False), reduce
    assert keras_adapter.ADAPTER.keep_uncompiled(dense_model()) is False


@contextmanager
def without_horovod() -> Iterator[None]:
    """A process in which nothing of it can be imported."""
    hidden = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "horovod"}
    for name in hidden:
        del sys.modules[name]
    sys.modules["horovod"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["horovod"]
        sys.modules.update(hidden)


@CASES.add
def a_saved_model_loads_and_goes_on_without_horovod() -> None:
    if hvd.rank() != 0:
        return
    # Rank 0 alone: nothing here is exchanged.
    with tempfile.TemporaryDirectory() as folder:
        for passes in (1, 3):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.02), backward_passes_per_step=passes)
            model = dense_model()
            model.compile(optimizer, "mse")
            optimizer.build(model.trainable_variables)
            optimizer.iterations.assign(5)
            path = Path(folder, f"{passes}.keras")
            model.save(path)
            with zipfile.ZipFile(path) as archive:
                written = json.loads(archive.read("config.json"))["compile_config"]["optimizer"]
            assert (written["module"], written["class_name"]) == ("keras.optimizers", "Adam"), written
            with without_horovod():
                plain = keras.models.load_model(path).optimizer
            assert not hasattr(plain, "_horovod_settings")
            assert int(plain.iterations.numpy()) == 5


@CASES.add
def sparse_gradients_of_embeddings_train() -> None:
    x = np.random.default_rng(hvd.rank()).integers(0, 20, (32, 4))
    y = np.zeros((32, 2), "float32")
    ways: list[dict[str, Any]] = [
        {},
        {"sparse_as_dense": True},
        {"sparse_as_dense": True, "backward_passes_per_step": 2},
    ]
    for options in ways[: 1 if backend() == "jax" else 3]:  # whose gradients are always dense
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Embedding(20, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ]
        )
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), "mse")
        with warnings.catch_warnings():
            # TensorFlow: sparse gradients become dense ones of unknown shape.
            warnings.simplefilter("ignore")
            model.fit(x, y, batch_size=8, epochs=1, verbose=0)
        assert_same_everywhere(weights_of(model), "embedding")
