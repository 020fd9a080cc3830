"""What estimators and their ranks do without a JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from horovod.errors import InvalidArgumentError
from horovod.spark.common.training import Rank


class World:
    """One rank."""

    def rank(self) -> int:
        return 0


def test_an_epoch_takes_its_batches_and_no_more() -> None:
    taken = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            taken.append(number)
            yield number
            number += 1

    job: Any = None
    rank, batches = Rank(job, World(), None, "", None), endless()
    assert [list(rank.steps_of(batches, 3)) for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    assert taken == [0, 1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="Rank 0: the data module ended after 2 of 3 batches"):
        list(rank.steps_of([1, 2], 3))


def test_a_checkpoint_within_an_epoch_is_refused() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    from horovod.spark.keras import KerasEstimator

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    checkpoint = keras.callbacks.ModelCheckpoint("x.keras", save_freq=10)
    given = {"model": model, "store": "unused", "feature_cols": ["x"], "label_cols": ["y"]}
    with pytest.raises(InvalidArgumentError, match=r"save_freq=10\. In the middle of an epoch"):
        KerasEstimator(**given, checkpoint_callback=checkpoint).fit(None)


class DataLoaders:
    """Of a data module for Lightning, with nothing in them."""

    def train_dataloader(self) -> Any:
        return []


class Trap:
    """Makes a directory where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_checkpoint_from_a_store_runs_no_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from horovod.spark.torch.packing import as_bytes, state_of_run

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    found = state_of_run(as_bytes(state), "mine")
    assert found["model"]["1.running_mean"].equal(model[1].running_mean)
    optimizer.load_state_dict(found["optimizer"])
    for damaged in (b"", b"nothing", as_bytes(state)[:300]):
        with pytest.raises(InvalidArgumentError, match=r"run mine has more .* or is damaged"):
            state_of_run(damaged, "mine")
    spoilt = as_bytes({**state, "more": Trap(tmp_path / "trap")})
    with pytest.raises(InvalidArgumentError, match=r"It refers to posix\.mkdir\. If you trust"):
        state_of_run(spoilt, "mine")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["torch", "lightning"])
def test_ranks_resume_from_no_checkpoint_that_runs_code(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from horovod.spark.common.training import Columns, TrainingRun
    from horovod.spark.torch.losses import Losses
    from horovod.spark.torch.packing import PackedModule, PackedOptimizer, as_bytes

    model = torch.nn.Linear(1, 1)
    packed = PackedModule.of(model), PackedOptimizer.of(torch.optim.SGD(model.parameters(), lr=0.1), model)
    spoilt = as_bytes({"model": model.state_dict(), "epoch": 1, "more": Trap(tmp_path / "trap")})
    columns = Columns(("x",), ("y",))
    run = TrainingRun(None, "mine", "checkpoint", spoilt, None, {}, columns, 1, 1, 0, None, False, 0)
    rank = Rank(run, World(), None, str(tmp_path), None)
    if name == "torch":
        from horovod.spark.torch.training import TorchTraining

        training: Any = TorchTraining(*packed, Losses(), None, 1, None, [])
    else:
        pytest.importorskip("lightning", reason="Lightning is not installed")
        from horovod.spark.lightning.training import LightningTraining

        rank.data = DataLoaders()
        losses = Losses([torch.nn.MSELoss()])
        training = LightningTraining(*packed, losses, None, [], {}, None, 50, False, None)
    with pytest.raises(InvalidArgumentError, match="checkpoint of run mine has more"):
        training.train(rank)
    assert not (tmp_path / "trap").exists()
