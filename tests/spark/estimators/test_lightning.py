"""``horovod.spark.lightning``: Lightning 2 with a strategy over ``horovod.torch``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.spark.conftest import WHOLE

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("lightning", reason="Lightning is not installed")

import torch
from pyspark.ml.param import Param, Params
from tests.spark.estimators.conftest import InProcess, accuracy
from torch.nn import functional

import horovod
from horovod.spark.common.backend import LocalBackend

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Lightning, at its import
    import lightning.pytorch as pl

    from horovod.spark.lightning import LightningEstimator, TorchEstimator, TorchModel

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("context"),
    pytest.mark.filterwarnings("ignore"),  # Lightning has advice on each Trainer
]
whole = pytest.mark.skipif(not WHOLE, reason="part of the full matrix")


class Digits(pl.LightningModule):  # type: ignore[misc]
    """Adam with a schedule, validation, and names of columns in the batches."""

    def __init__(self, key: str = "pixels") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.key = key
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, pixels: Any) -> Any:
        return self.net(pixels)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = functional.cross_entropy(self(batch[self.key]), batch["digit"].long())
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        right = (self(batch["pixels"]).argmax(1) == batch["digit"]).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = torch.nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return self.inner(x.reshape(-1, 1))


def of_digits(store: Any, **more: Any) -> TorchEstimator:
    given: dict[str, Any] = {
        "backend": InProcess(),
        "store": store,
        "model": Digits(),
        "feature_cols": ["pixels"],
        "label_cols": ["digit"],
        "epochs": 3,
        "verbose": 0,
        "random_seed": 1,
    }
    return LightningEstimator(**{**given, **more})


def line(store: Any, **more: Any) -> TorchEstimator:
    model = more.pop("model", None) or Line()
    given: dict[str, Any] = {
        "backend": InProcess(),
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": functional.mse_loss,
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "epochs": 6,
        "batch_size": 16,
        "verbose": 0,
    }
    return TorchEstimator(**{**given, **more})


@whole
def test_two_ranks_learn_digits_and_the_model_can_be_saved(digits: Any, store: Any, tmp_path: Path) -> None:
    estimator = of_digits(
        store,
        backend=LocalBackend(2, verbose=0),
        validation=0.2,
        run_id="digits",
        trainer_args={"gradient_clip_val": 1.0},
    )
    model = estimator.fit(digits)
    assert model.getHistory()["right"] > 0.8
    assert store.exists(f"{store.get_run_path('digits')}/checkpoint.ckpt")
    model.save(str(tmp_path / "trained"))
    estimator.save(str(tmp_path / "untrained"))
    assert accuracy(TorchModel.load(str(tmp_path / "trained")).transform(digits).collect()) > 0.85
    assert TorchEstimator.load(str(tmp_path / "untrained")).getTrainerArgs() == {"gradient_clip_val": 1.0}


@whole
def test_a_plain_module_with_weights_of_rows_is_resumed(lines: Any, store: Any) -> None:
    def error(output: Any, label: Any) -> Any:
        return (output - label).abs().max()

    more: dict[str, Any] = {"sample_weight_col": "weight", "metrics": [error], "run_id": "mine"}
    first = line(store, validation="held", **more).fit(lines)
    assert first.getHistory()["val_group_0_y"] > 5, "with the rows that lie"
    assert first.getHistory()["val_loss"] < 0.1
    second = line(store, epochs=1, **more).fit(lines)
    assert second.getHistory()["train_loss"] < 1.5 * first.getHistory()["train_loss"]
    found = second.transform(lines)
    assert dict(found.dtypes)["y__output"] == "double"
    assert max(abs(row["y__output"] - 2 * row["x"] - 1) for row in found.collect()) < 0.8


def test_what_makes_no_sense_is_refused(lines: Any, store: Any) -> None:
    plain = torch.nn.Linear(1, 1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"loss": None}, "needs optimizer and loss, as the model .Line. is no LightningModule"),
        ({"optimizer": None}, "needs optimizer and loss"),
        ({"train_minibatch_fn": print}, "write a training_step"),
        (
            {"model": plain},
            r"Linear.forward gets the features as arguments with the names of their columns \(x\)",
        ),
    ]
    for wrong, says in cases:
        with pytest.raises(ValueError, match=says):
            line(store, **wrong).fit(lines)
    with pytest.raises(ValueError, match="loss, loss_weights, metrics must not be set"):
        of_digits(store, loss=functional.mse_loss, loss_weights=[1.0], metrics=[min]).fit(lines)
    with pytest.raises(RuntimeError, match="The size of a queue must be a number"):
        TorchEstimator(train_async_data_loader_queue_size="long")


class Client(LightningEstimator):
    """As packages make their own estimators: keywords, parameters of Spark ML, a backend by default, rows
    that are made of names of files, and a model class that predicts row by row."""

    lit_col = Param(Params._dummy(), "lit_col", "column of names")

    def __init__(self, lit_col: str | None = None, store: Any = None, batch_size: int | None = None) -> None:
        super().__init__()
        self._setDefault(lit_col="name", feature_cols=["name"], label_cols=["digit"])
        self._set(lit_col=lit_col, store=store, batch_size=batch_size)
        self._set(
            model=Digits(key="name"), transformation_fn=_pixels_of_name, verbose=0, input_shapes=[[-1, 64]]
        )

    def _get_or_create_backend(self) -> Any:
        assert self.getBackend() is None
        return InProcess()

    def get_model_class(self) -> Any:
        return ClientModel

    def _get_model_kwargs(
        self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any
    ) -> dict[str, Any]:
        return {
            "history": history,
            "model": model,
            "run_id": run_id,
            "_metadata": metadata,
            "lit_col": "name",
        }


class ClientModel(TorchModel):
    lit_col = Param(Params._dummy(), "lit_col", "column of names")

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._setDefault(feature_columns=["name"], label_columns=["digit"], outputCols=["scores"])
        self.setParams(**given)

    def get_prediction_fn(self) -> Any:
        return lambda model, row: model(torch.as_tensor(_pixels_of_name(row.asDict())["name"])[None])


def _pixels_of_name(row: dict[str, Any]) -> dict[str, Any]:
    number = int(row["name"].removeprefix("row-"))
    return {**row, "name": np.eye(64, dtype=np.float32)[number % 4]}


def test_a_package_with_estimators_of_its_own(session: Any, store: Any) -> None:
    frame = session.createDataFrame([(f"row-{i}", i % 4) for i in range(64)], "name string, digit int")
    model = Client(store=store, batch_size=8).setEpochs(5).fit(frame.coalesce(1))
    assert type(model) is ClientModel
    assert model.getOrDefault("lit_col") == "name"
    found = model.transform(frame).collect()
    assert [int(row["scores"].toArray().argmax()) for row in found] == [row["digit"] for row in found]


def test_a_loss_that_is_no_number_ends_training(lines: Any, store: Any) -> None:
    def loss(output: Any, label: Any) -> Any:
        return functional.mse_loss(output, label) * float("nan")

    with pytest.raises(ValueError, match="The loss of batch 0 is nan"):
        line(store, loss=loss, terminate_on_nan=True).fit(lines)


Step = tuple[list[list[float]], bool]
"""The rows of a batch, and whether the optimizer takes a step after it."""


def train_together(accumulate: int) -> tuple[list[float], float, list[float], list[Step]]:
    """An epoch with a shard of eight rows in batches of two; returns the weights, the learning rate, reduced
    values and what this rank has seen."""
    import lightning.pytorch as pl
    import torch

    import horovod.torch as hvd
    from horovod.spark.lightning import HorovodStrategy

    hvd.init()

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Step] = []
            self.layer = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.constant_(self.layer.weight, float(hvd.rank()))

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen.append((batch.tolist(), False))
            self.log("rank", float(hvd.rank()), sync_dist=True, on_epoch=True, on_step=False)
            return (self.layer(batch) - 1).pow(2).mean()

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.seen[-1] = (self.seen[-1][0], True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    rows = torch.arange(32.0).reshape(16, 2) / 32
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=2)  # type: ignore[arg-type]  # Lightning deals its rows out
    trainer = pl.Trainer(
        strategy=HorovodStrategy(scale_learning_rate=True),
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, loader)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    seen = trainer.strategy.all_gather(torch.tensor([float(trainer.global_rank)]))
    values = [float(trainer.callback_metrics["rank"]), *seen.flatten().tolist(), trainer.world_size]
    return model.layer.weight.flatten().tolist(), rate, values, model.seen


@pytest.mark.parametrize(
    ("accumulate", "steps"), [(1, 4), pytest.param(2, 2, marks=whole), pytest.param(3, 2, marks=whole)]
)
def test_the_strategy_takes_the_steps_of_one_process_with_all_rows(accumulate: int, steps: int) -> None:
    results = horovod.run(train_together, (accumulate,), num_proc=2, verbose=0)
    weight = torch.zeros(1, 2, requires_grad=True)
    taken = 0
    summed = torch.zeros(1, 2)
    # Lightning shuffles what it deals out: the batches are those that the ranks have seen.
    for (mine, ends), (theirs, ends_too) in zip(results[0][3], results[1][3], strict=True):
        assert ends == ends_too
        loss = (torch.tensor([*mine, *theirs]) @ weight.T - 1).pow(2).mean() / accumulate
        summed += torch.autograd.grad(loss, weight)[0]
        if ends:
            taken += 1
            with torch.no_grad():
                weight -= 0.2 * summed / max(1.0, float(summed.norm()))
            summed.zero_()
    assert taken == steps
    for weights, rate, values, _ in results:
        assert weights == pytest.approx(weight.flatten().tolist(), rel=1e-5)
        assert rate == pytest.approx(0.1), "0.1 for each of two processes, halved by the schedule"
        assert values == [0.5, 0.0, 1.0, 2]


class Counted(pl.LightningModule):  # type: ignore[misc]
    """Counts the rows that a rank has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: Any, index: int) -> Any:
        self.log("rows", float(len(batch[0])), on_epoch=True, on_step=False, reduce_fx="sum")
        return (batch[0] * self.factor).sum()

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("held", float(len(batch[0])), reduce_fx="sum")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OwnData(pl.LightningDataModule):  # type: ignore[misc]
    """Has rows of its own, and knows nothing of estimators but the size of a batch."""

    def __init__(self, train_batch_size: int) -> None:
        super().__init__()
        self.train_batch_size = train_batch_size

    def setup(self, stage: str) -> None:
        assert stage == "fit"
        self.rows = torch.utils.data.TensorDataset(torch.ones(12, 1))

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.rows, self.train_batch_size)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.rows, 2)


@pytest.mark.parametrize("given", [OwnData, OwnData(3)], ids=["class", "instance"])
def test_a_data_module_of_lightning_needs_no_more_than_lightning_asks(
    lines: Any, store: Any, given: Any
) -> None:
    ranks = 2 if WHOLE else 1
    trained = TorchEstimator(
        backend=LocalBackend(2, verbose=0) if WHOLE else InProcess(),
        store=store,
        model=Counted(),
        data_module=given,
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=4,
        epochs=1,
        verbose=0,
    ).fit(lines)
    assert trained.getHistory()["rows"] == 12 / ranks
    assert trained.getHistory()["held"] == 12 / ranks


def test_a_data_module_with_other_arguments_is_refused(lines: Any, store: Any) -> None:
    class Needy(OwnData):
        def __init__(self, folder: str) -> None:
            super().__init__(1)
            self.folder = folder

    with pytest.raises(ValueError, match=r"Needy needs arguments .*: folder\. Pass an instance"):
        TorchEstimator(
            backend=InProcess(), store=store, model=Counted(), data_module=Needy, feature_cols=["x"],
            label_cols=["y"], verbose=0,
        ).fit(lines)  # fmt: skip
