"""``horovod.spark.torch``: from a DataFrame to a model and back to a DataFrame."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import WHOLE, above, assert_no_ranks

pytest.importorskip("pyspark", reason="PySpark is not installed")

import torch
from tests.spark.estimators.conftest import InProcess, accuracy
from torch.nn import functional

from horovod.errors import LaunchError, StoreTimeout, WorkerFailed
from horovod.spark.common.backend import LocalBackend, SparkBackend
from horovod.spark.torch import TorchEstimator, TorchModel

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("context")]
whole = pytest.mark.skipif(not WHOLE, reason="part of the full matrix")


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def of_digits(store: Any, **more: Any) -> TorchEstimator:
    model = network()
    given: dict[str, Any] = {
        "backend": InProcess(),
        "store": store,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "loss": functional.cross_entropy,
        "feature_cols": ["pixels"],
        "label_cols": ["digit"],
        "epochs": 3,
        "verbose": 0,
        "random_seed": 1,
    }
    return TorchEstimator(**{**given, **more})


def line(store: Any, **more: Any) -> TorchEstimator:
    torch.manual_seed(1)
    model = more.pop("model", None) or torch.nn.Linear(1, 1)
    given: dict[str, Any] = {
        "backend": InProcess(),
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": functional.mse_loss,
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "input_shapes": [[-1, 1]],
        "epochs": 8,
        "batch_size": 16,
        "verbose": 0,
        "random_seed": 1,
    }
    return TorchEstimator(**{**given, **more})


def test_a_pipeline_trains_in_spark_tasks_and_can_be_saved(digits: Any, store: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel

    def right(output: Any, label: Any) -> Any:
        return (output.argmax(1) == label).float().mean()

    estimator = of_digits(
        store, backend=SparkBackend(2, verbose=0), validation=0.2, metrics=[right], run_id="digits"
    )
    Pipeline(stages=[estimator]).save(str(tmp_path / "untrained"))
    model = Pipeline(stages=[estimator]).fit(digits)
    history = model.stages[0].getHistory()
    assert [record["epoch"] for record in history] == [0, 1, 2]
    assert history[2]["train"]["loss"] < history[0]["train"]["loss"] / 2
    assert history[2]["validation"]["all_metrics"][0]["group_0_digit"] > 0.8
    assert model.stages[0].getOptimizer().param_groups[0]["lr"] == pytest.approx(0.01), "that of one process"
    assert store.exists(store.get_checkpoint_path("digits"))
    with torch.no_grad():
        untouched: Any = network()[0].weight
        assert estimator.getModel()[0].weight.equal(untouched), "the given model is left as it is"

    model.save(str(tmp_path / "trained"))
    found = PipelineModel.load(str(tmp_path / "trained")).transform(digits)
    assert accuracy(found.collect()) > 0.85
    again = Pipeline.load(str(tmp_path / "untrained")).getStages()[0]
    assert (again.getStore(), again.getBackend(), again.getRunId()) == (None, None, "digits")
    assert again.getOptimizer().param_groups[0]["params"][0] is next(again.getModel().parameters())


def test_weights_of_rows_a_validation_column_and_the_type_of_the_label(lines: Any, store: Any) -> None:
    model = line(store, sample_weight_col="weight", validation="held").fit(lines)
    record = model.getHistory()[-1]
    assert record["train"]["loss"] < 0.05
    assert record["validation"]["loss"] < 0.05
    assert dict(model.transform(lines.limit(0)).dtypes)["y__output"] == "double"
    found = model.transform(lines)
    assert dict(found.dtypes)["y__output"] == "double"
    worst = max(abs(row["y__output"] - 2 * row["x"] - 1) for row in found.collect())
    assert worst < 0.6, "rows without weight would have pulled the line far away"

    model.setLabelColumns(["whole"]).setOutputCols(["guess"])
    model.setParams(_metadata={"whole": {"spark_data_type": type(lines.schema["whole"].dataType)}})
    rounded = model.transform(lines)
    assert dict(rounded.dtypes)["guess"] == "int"


def test_a_run_is_resumed_by_its_name(lines: Any, store: Any) -> None:
    truth = lines.filter("weight > 0")
    first = line(store, run_id="mine").fit(truth)
    second = line(store, run_id="mine", epochs=1).fit(truth)
    fresh = line(store, run_id="other", epochs=1).fit(truth)
    assert second.getHistory()[0]["train"]["loss"] < 1.5 * first.getHistory()[-1]["train"]["loss"]
    assert fresh.getHistory()[0]["train"]["loss"] > 5 * second.getHistory()[0]["train"]["loss"]
    assert second.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="Run mine in the store is that of another model"):
        line(store, run_id="mine", model=torch.nn.Linear(1, 2)).fit(truth)


def test_training_on_parquet_of_the_store(session: Any, lines: Any, store: Any) -> None:
    lines.filter("weight > 0").write.parquet(store.get_train_data_path())
    lines.filter("held").write.parquet(store.get_val_data_path())
    model = line(store, validation="any", transformation_fn=None).fit_on_parquet()
    assert model.getHistory()[-1]["train"]["loss"] < 0.05
    assert model.getHistory()[-1]["validation"]["loss"] > 1, "with the rows that lie"


@whole
def test_a_rank_that_fails_is_named(lines: Any, store: Any) -> None:
    def loss(output: Any, label: Any) -> Any:
        import horovod.torch as hvd

        if hvd.rank() == 1:
            raise ArithmeticError("no loss today")
        return functional.mse_loss(output, label)

    with pytest.raises(WorkerFailed, match=r"(?s)rank 1 .*no loss today") as caught:
        line(store, loss=loss, backend=LocalBackend(2, verbose=0)).fit(lines)
    assert caught.value.rank == 1


def test_data_that_does_not_fit_the_model(session: Any, lines: Any, digits: Any, store: Any) -> None:
    with pytest.raises(ValueError, match="nothing"):
        line(store, feature_cols=["nothing"]).fit(lines)
    with pytest.raises(ValueError, match="validation"):
        line(store, validation=1.5).fit(lines)
    texts = session.createDataFrame([("a", ["b"], 2.0)], "x string, z array<string>, y double")
    with pytest.raises(ValueError, match="Column 'z' has the type String"):
        line(store, feature_cols=["z"], transformation_fn=None).fit(texts)
    for features in (["x"], None):
        with pytest.raises(
            ValueError, match="Column 'x' has the type String, of which the model gets no numbers"
        ):
            line(store, feature_cols=features, transformation_fn=None).fit(texts)
    assert not store.is_parquet_dataset(store.get_train_data_path(0))
    with pytest.raises(ValueError, match="pixels"):
        of_digits(store, input_shapes=[[-1, 8, 9]]).fit(digits)
    nulls = session.createDataFrame([(1.0, 2.0), (None, 3.0)], "x double, y double")
    with pytest.raises(Exception, match=r"(?s)x.*null|null.*x"):
        line(store).fit(nulls)
    columns: dict[str, Any] = {"feature_columns": ["x"], "label_columns": ["y"], "input_shapes": [[1]]}
    model = TorchModel(model=torch.nn.Linear(1, 1), **columns)
    with pytest.raises(Exception, match="Column 'x' has a null"):
        model.transform(nulls).collect()
    with pytest.raises(ValueError, match="has no column 'x', which is a feature"):
        model.transform(nulls.drop("x"))
    with pytest.raises(ValueError, match="has a column 'y' already"):
        model.setOutputCols(["y"]).transform(nulls)


def test_what_cannot_be_pickled_is_named_before_data_are_written(lines: Any, store: Any) -> None:
    class Loss:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, output: Any, label: Any) -> Any:
            return functional.mse_loss(output, label)

    with pytest.raises(
        ValueError, match=r"attribute 'lock' of item 0 of parameter loss cannot be pickled.*_thread.lock"
    ):
        line(store, loss=[Loss()]).fit(lines)
    model = torch.nn.Linear(1, 1)
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="attribute 'lock' of the model cannot be pickled"):
        line(store, model=model).fit(lines)
    assert not store.is_parquet_dataset(store.get_train_data_path(0))
    trained = TorchModel(model=torch.nn.Linear(1, 1), feature_columns=["x"], label_columns=["y"])
    trained.getModel().lock = threading.Lock()
    with pytest.raises(ValueError, match="attribute 'lock' of the model cannot be pickled"):
        trained.transform(lines)


def test_columns_that_the_model_does_not_take(lines: Any, digits: Any, store: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"Rank 0: the model does not take this batch: .*Features: pixels \[16, 64\] float32",
    ):
        line(
            store,
            model=torch.nn.Linear(63, 10),
            feature_cols=["pixels"],
            label_cols=["digit"],
            input_shapes=None,
        ).fit(digits)
    with pytest.raises(ValueError, match=r"the loss does not take this batch: .*Outputs: \[16, 3\] float32"):
        line(store, model=torch.nn.Linear(1, 3), loss=lambda output, label: (output - label).mean()).fit(
            lines
        )

    class Two(torch.nn.Linear):
        def forward(self, values: Any) -> Any:
            return super().forward(values), {}

    with pytest.raises(ValueError, match=r"The model returns 2 outputs .Tensor, dict. for 1 labels"):
        line(store, model=Two(1, 1)).fit(lines)
    with pytest.raises(
        ValueError, match=r"no column 'y'; they have 'x'. A transformation_fn must return all"
    ):
        line(store, transformation_fn=lambda row: {"x": row["x"]}).fit(lines)


def test_without_a_spark_context_there_are_no_tasks(lines: Any, store: Any, monkeypatch: Any) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(LaunchError, match="SparkContext"):
        line(store, backend=None).fit(lines)


def test_a_store_that_cannot_be_written(lines: Any) -> None:
    from horovod.spark.common.store import Store

    # Nobody can make a directory there, not even root.
    with pytest.raises(OSError, match="/proc/nowhere"):
        line(Store.create("/proc/nowhere")).fit(lines)


@whole
def test_a_prediction_function_of_a_subclass(lines: Any) -> None:
    class Doubled(TorchModel):
        def get_prediction_fn(self) -> Any:
            return lambda model, row: 2 * model(torch.tensor([[row["x"]]], dtype=torch.float32))

    inner = torch.nn.Linear(1, 1)
    model = Doubled(model=inner, feature_columns=["x"], label_columns=["y"])
    row = model.transform(lines).filter("x > 0.5").first()
    assert row["y__output"] == pytest.approx(2 * inner(torch.tensor([[row["x"]]])).item(), rel=1e-5)


@whole
def test_a_rank_that_is_killed_in_a_task_ends_all(lines: Any, store: Any) -> None:
    def loss(output: Any, label: Any) -> Any:
        import os
        import signal

        import horovod.torch as hvd

        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return functional.mse_loss(output, label)

    with pytest.raises(WorkerFailed, match=r"(?s)rank 1.*SIGKILL"):
        line(store, loss=loss, backend=SparkBackend(2, verbose=0)).fit(lines)
    assert_no_ranks()


@whole
@pytest.mark.timeout(480)
def test_an_executor_that_is_killed_ends_the_run_which_can_be_resumed(
    lines: Any, store: Any, tmp_path: Path
) -> None:
    """Its JVM is killed in the third epoch."""
    truth, killed_at = lines.filter("weight > 0"), str(tmp_path / "killed")

    def kill(record: Any, model: Any) -> None:
        import os
        import signal
        import time

        import horovod.torch as hvd

        if hvd.rank() == 1 and record["epoch"] == 2:
            with open(killed_at, "w") as file:
                file.write(str(time.time()))
            os.kill(above(os.getpid(), "--executor-id"), signal.SIGKILL)

    backend = SparkBackend(2, verbose=0)
    with pytest.raises(
        WorkerFailed, match=r"(?s)Spark task \d \(executor \d+\) is gone.*ExecutorLost"
    ) as caught:
        line(store, callbacks=[kill], run_id="lost", backend=backend).fit(truth)
    assert time.time() - float(Path(killed_at).read_text()) < 20
    assert caught.value.rank == 1
    assert_no_ranks()
    resumed = line(store, run_id="lost", epochs=1, backend=backend).fit(truth).getHistory()
    fresh = line(store, run_id="another", epochs=1).fit(truth).getHistory()
    assert resumed[0]["train"]["loss"] < fresh[0]["train"]["loss"] / 2


@whole
def test_more_processes_than_slots(lines: Any, store: Any) -> None:
    with pytest.raises((LaunchError, StoreTimeout), match="slots"):
        line(store, backend=SparkBackend(3, verbose=0, start_timeout=5)).fit(lines)
    assert_no_ranks()


@whole
def test_ways_to_give_a_loss_and_a_step_agree(lines: Any, store: Any) -> None:
    def step(
        model: Any,
        optimizer: Any,
        transform: Any,
        loss_fn: Any,
        inputs: Any,
        labels: Any,
        weights: Any,
        *_: int,
    ) -> Any:
        optimizer.zero_grad()
        outputs, labels = transform(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        optimizer.step()
        return outputs, loss

    def trained(**more: Any) -> float:
        found = line(store, shuffle=False, epochs=2, **more).fit(lines)
        return float(found.getModel().weight.item())

    plain = trained()
    assert trained(loss=None, loss_constructors=[torch.nn.MSELoss]) == pytest.approx(plain)
    assert trained(train_minibatch_fn=step) == pytest.approx(plain)
    assert trained(batch_size=8, backward_passes_per_step=2) == pytest.approx(plain, rel=1e-4)


@whole
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_several_outputs_and_groups_of_metrics(lines: Any, store: Any) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            both = torch.cat([x, w], 1)
            return self.a(both), self.b(both)

    def error(output: Any, label: Any) -> Any:
        return (output - label).abs().mean()

    script = torch.jit.script(Two())
    model = line(
        store,
        model=script,
        feature_cols=["x", "weight"],
        input_shapes=[[-1, 1], [1]],
        label_cols=["y", "whole"],
        loss_weights=[0.25, 0.75],
        metrics=[error, [error, error]],
        epochs=30,
    ).fit(lines)
    groups = model.getHistory()[-1]["train"]["all_metrics"]
    assert [sorted(group) for group in groups] == [
        ["group_0_whole", "group_0_y"],
        ["group_1_whole", "group_1_y"],
    ]
    assert groups[0]["group_0_whole"] < 0.6
    found = model.transform(lines)
    assert dict(found.dtypes)["whole__output"] == "int"
    assert isinstance(model.getModel(), torch.jit.ScriptModule)


@whole
def test_a_data_module_that_ends_too_early_is_an_error(lines: Any, store: Any) -> None:
    from horovod.spark.torch.datamodule import ParquetDataModule

    class Short(ParquetDataModule):
        def train_data(self) -> Any:
            return [next(iter(super().train_data()))]

    with pytest.raises(RuntimeError, match="Rank 0: the data module ended after 1 of"):
        line(store, data_module=Short).fit(lines)
