"""What estimators and their ranks do without a JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
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
