"""``horovod.spark.keras``: Keras 3 on whichever backend this session has."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.spark.conftest import WHOLE

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")
if "keras" not in sys.modules:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # the quickest to start

import keras
from tests.spark.estimators.conftest import InProcess, accuracy

from horovod.spark.common.backend import LocalBackend
from horovod.spark.keras import KerasEstimator, KerasModel

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("context"),
    # Of Keras on PyTorch, whenever it saves a variable with a NumPy that has "copy".
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]
whole = pytest.mark.skipif(not WHOLE, reason="part of the full matrix")


def right(label: Any, scores: Any) -> Any:
    found = keras.ops.argmax(scores, axis=-1)
    label = keras.ops.cast(keras.ops.reshape(label, (-1,)), found.dtype)
    return keras.ops.mean(keras.ops.cast(keras.ops.equal(label, found), "float32"))


def of_digits(store: Any, **more: Any) -> KerasEstimator:
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8, 8)),
        keras.layers.Flatten(),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dense(10),
    ]
    given: dict[str, Any] = {
        "backend": InProcess(),
        "store": store,
        "model": keras.Sequential(layers),
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": [right],
        "feature_cols": ["pixels"],
        "label_cols": ["digit"],
        "label_shapes": [[-1, 1]],
        "epochs": 3,
        "verbose": 0,
        "random_seed": 1,
    }
    return KerasEstimator(**{**given, **more})


def line(store: Any, **more: Any) -> KerasEstimator:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    given: dict[str, Any] = {
        "backend": InProcess(),
        "store": store,
        "model": model,
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "epochs": 6,
        "batch_size": 16,
        "verbose": 0,
        "random_seed": 1,
    }
    return KerasEstimator(**{**given, **more})


@whole
def test_two_ranks_learn_digits_and_the_model_can_be_saved(digits: Any, store: Any, tmp_path: Path) -> None:
    estimator = of_digits(store, backend=LocalBackend(2, verbose=0), validation=0.2, run_id="digits")
    model = estimator.fit(digits)
    history = model.getHistory()
    assert history["loss"][-1] < history["loss"][0] / 2
    assert history["val_right"][-1] > 0.8
    assert float(model.getModel().optimizer.learning_rate) == pytest.approx(0.01), "that of one process"
    assert store.exists(f"{store.get_run_path('digits')}/checkpoint.keras")
    model.save(str(tmp_path / "trained"))
    estimator.save(str(tmp_path / "untrained"))
    found = KerasModel.load(str(tmp_path / "trained")).transform(digits)
    assert accuracy(found.collect()) > 0.85
    again = KerasEstimator.load(str(tmp_path / "untrained"))
    assert (again.getStore(), again.getEpochs()) == (None, 3)
    assert again.getMetrics()[0].__name__ == "right"


def test_a_compiled_model_with_weights_of_rows_is_resumed(lines: Any, store: Any) -> None:
    first = line(store, sample_weight_col="weight", validation="held", run_id="mine").fit(lines)
    assert first.getHistory()["loss"][-1] < 0.1
    assert first.getHistory()["val_loss"][-1] < 0.1
    second = line(store, sample_weight_col="weight", run_id="mine", epochs=1).fit(lines)
    assert second.getHistory()["loss"][0] < 1.5 * first.getHistory()["loss"][-1]
    assert float(second.getModel().optimizer.learning_rate) == pytest.approx(0.1)
    wide = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    wide.compile("sgd", "mse")
    with pytest.raises(
        ValueError, match=r"Run mine .* of another model: its weights have .*\(1, 1\).*\(1, 2\)"
    ):
        line(store, model=wide, run_id="mine").fit(lines)
    found = second.transform(lines)
    assert dict(found.dtypes)["y__output"] == "double"
    assert max(abs(row["y__output"] - 2 * row["x"] - 1) for row in found.collect()) < 0.8


def test_what_makes_no_sense_is_refused(lines: Any, digits: Any, store: Any) -> None:
    plain = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    for wrong, says in [
        ({"model": object()}, "must be a Model of Keras 3 or of tf_keras, not builtins.object"),
        ({"model": plain}, "needs optimizer, or a compiled model"),
        ({"model": plain, "optimizer": "sgd"}, "needs loss, or a compiled model"),
        ({"optimizer": "sgd"}, "optimizer is set, and loss is not"),
        (
            {"checkpoint_callback": keras.callbacks.ModelCheckpoint("x.weights.h5", save_weights_only=True)},
            "saves weights only",
        ),
    ]:
        with pytest.raises(ValueError, match=says):
            line(store, **wrong).fit(lines)
    with pytest.raises(ValueError, match="x"):
        of_digits(store, feature_cols=["x"], label_cols=["whole"]).fit(lines)
    with pytest.raises(ValueError, match=r"pixels|inputs|features"):
        of_digits(store, feature_cols=["pixels", "digit"]).fit(digits)


@whole
def test_callbacks_of_users_and_a_checkpoint_of_the_best(lines: Any, store: Any) -> None:
    import horovod.keras as hvd

    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=100.0)
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    warm = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2)
    model = line(store, callbacks=[stop, warm], checkpoint_callback=best).fit(lines)
    assert len(model.getHistory()["loss"]) == 2
    never = keras.callbacks.ModelCheckpoint(
        "x.keras", monitor="loss", mode="min", save_best_only=True, initial_value_threshold=0.0
    )
    with pytest.raises(ValueError, match=r"has saved no model: no callback has written checkpoint.keras"):
        line(store, checkpoint_callback=never).fit(lines)


@whole
def test_a_model_with_named_inputs_and_a_custom_layer(lines: Any, store: Any, tmp_path: Path) -> None:
    class Twice(keras.layers.Layer):  # type: ignore[misc]
        def call(self, values: Any) -> Any:
            return 2 * values

    x, weight = keras.Input((1,), name="x"), keras.Input((1,), name="weight")
    output = keras.layers.Dense(1)(keras.layers.Concatenate()([Twice()(x), weight]))
    model = keras.Model({"x": x, "weight": weight}, output)
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss="mse")
    trained = line(
        store,
        model=model,
        feature_cols=["x", "weight"],
        custom_objects={"Twice": Twice},
        backend=LocalBackend(2, verbose=0),
        epochs=20,
    ).fit(lines)
    assert trained.getHistory()["loss"][-1] < trained.getHistory()["loss"][0] / 4
    trained.save(str(tmp_path / "model"))
    assert KerasModel.load(str(tmp_path / "model")).transform(lines).count() == lines.count()


@whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["compiled", "legacy optimizer", "newer optimizer"])
def test_models_of_tf_keras_are_trained_by_two_ranks_and_predict(
    lines: Any, store: Any, tmp_path: Path, how: str
) -> None:
    tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential([tf_keras.layers.Input((1,)), tf_keras.layers.Dense(1)])
    given: dict[str, Any] = {}
    if how == "compiled":
        model.compile(optimizer=tf_keras.optimizers.SGD(0.1), loss="mse")
    else:
        optimizers = tf_keras.optimizers.legacy if how == "legacy optimizer" else tf_keras.optimizers
        given = {"optimizer": optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"]}
    estimator = line(
        store,
        model=model,
        backend=LocalBackend(2, verbose=0),
        sample_weight_col="weight",
        validation="held",
        **given,
    )
    trained = estimator.fit(lines)
    history = trained.getHistory()
    assert len(history["loss"]) == len(history["val_loss"]) == 6
    assert isinstance(trained.getModel(), tf_keras.Model)
    assert float(trained.getModel().optimizer.learning_rate) == pytest.approx(0.1)
    rows = trained.transform(lines.filter("x < 1 and weight > 0")).collect()
    assert np.mean([abs(row["y__output"] - row["y"]) for row in rows]) < 0.2
    trained.save(str(tmp_path / "model"))
    again = KerasModel.load(str(tmp_path / "model"))
    first = lines.limit(1)
    assert again.transform(first).first() == trained.transform(first).first()
