"""`HorovodRunner` on real Spark, and the names of `sparkdl`."""

from __future__ import annotations

import importlib
import io
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from horovod.errors import ConfigError, LaunchError, WorkerFailed

pytest.importorskip("pyspark", reason="PySpark is not installed")

from horovod.spark import HorovodRunner, sparkdl_shim
from horovod.spark import runner as runner_module

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def shim() -> Iterator[None]:
    sparkdl_shim.install()
    yield
    sparkdl_shim.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "sparkdl"]:
        del sys.modules[name]


def train(epochs: int) -> tuple[float, int]:
    """Keras on the digits of scikit-learn, as a notebook has it."""
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np
    from sklearn.datasets import load_digits
    from sparkdl.horovod.tensorflow.keras import LogCallback

    import horovod.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")[hvd.rank() :: hvd.size()]
    labels = labels[hvd.rank() :: hvd.size()]
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    if hvd.rank() == 0:
        callbacks.append(LogCallback())
    print(f"rank {hvd.rank()} trains", flush=True)
    history = model.fit(
        images[:800],
        labels[:800],
        batch_size=32,
        epochs=epochs,
        callbacks=callbacks,
        verbose=0,
        shuffle=False,
    )
    assert np.isfinite(history.history["loss"]).all()
    return float(history.history["accuracy"][-1]), hvd.size()


@pytest.mark.usefixtures("shim", "context")
def test_from_a_process_here_to_tasks_of_spark_by_the_names_of_sparkdl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs: Any = importlib.import_module("sparkdl").HorovodRunner
    assert theirs is HorovodRunner
    for count in (-1, 2):
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        accuracy, size = theirs(np=count).run(train, epochs=4)
        monkeypatch.undo()
        assert size == abs(count)
        assert accuracy > 0.8
        assert "Epoch 3 ends: accuracy" in out.getvalue()
        assert ("rank 0 trains" in out.getvalue()) == (count < 0), "of tasks only the messages are shown"


@pytest.mark.usefixtures("context")
def test_all_that_tasks_print_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk() -> str:
        from horovod.spark.log import log_to_driver

        log_to_driver("x" * 5000)
        for number in range(200):
            print(f"{number} " + "y" * 100, flush=True)
        return "done"

    monkeypatch.setattr(runner_module, "_MOST_SHOWN_BYTES", 4000)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert HorovodRunner(np=1, driver_log_verbosity="all").run(talk) == "done"
    monkeypatch.undo()
    lines = out.getvalue().splitlines()
    assert "x" * 4000 in lines
    assert "[0]<stdout>:0 " + "y" * 100 in lines
    assert sum("truncated here, after 4 MB" in line for line in lines) == 1
    assert not any(line.startswith("[0]<stdout>:199 ") for line in lines)


def test_a_failure_here_has_the_exception() -> None:
    def fail(word: str) -> None:
        raise ValueError(word)

    with pytest.raises(WorkerFailed, match="in fail") as caught:
        HorovodRunner(np=-1).run(fail, word="no data")
    assert repr(caught.value.__cause__) == "ValueError('no data')"
    with pytest.raises(LaunchError, match="argument 'word' cannot be pickled"):
        HorovodRunner(np=-1).run(fail, word=(each for each in "ab"))


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(TypeError):
        HorovodRunner(2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="np must be a whole number"):
        HorovodRunner(np="2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="np=0 meant all slots"):
        HorovodRunner(np=0)
    with pytest.raises(ValueError, match="driver_log_verbosity must be one of all, log_callback_only"):
        HorovodRunner(np=2, driver_log_verbosity="none")


@pytest.mark.usefixtures("shim")
def test_the_shim_never_stands_in_front_of_a_real_package(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "sparkdl").mkdir()
    (tmp_path / "sparkdl" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("sparkdl").real
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sparkdl.horovod")


@pytest.mark.usefixtures("shim")
def test_the_shim_has_the_names_and_no_others() -> None:
    base: types.ModuleType = importlib.import_module("sparkdl.horovod.runner_base")
    assert base.HorovodRunner is HorovodRunner
    log: Any = importlib.import_module("sparkdl.horovod")
    with pytest.raises(TypeError, match="takes a text"):
        log.log_to_driver(3)
    with pytest.raises(AttributeError, match="no attribute 'estimators'"):
        _ = log.estimators
    sparkdl_shim.uninstall()
    del sys.modules["sparkdl.horovod"], sys.modules["sparkdl"]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sparkdl")
