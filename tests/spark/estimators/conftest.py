"""Tables to train on, a store for each test, and ranks in this very process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from horovod.spark.common.backend import Backend


class InProcess(Backend):
    """One rank, which is this process: quick, and a debugger sees it."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> list[Any]:
        training, run = args
        try:
            return [fn(training, run)]
        finally:
            import_module(training.frontend).shutdown()

    def num_processes(self) -> int:
        return 1


@pytest.fixture(scope="session")
def session(context: Any) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession(context)


@pytest.fixture(scope="session")
def digits(session: Any) -> Any:
    """Pictures of digits as vectors ``pixels`` (64 numbers), and the ``digit``."""
    from pyspark.ml.linalg import Vectors
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = [
        (Vectors.dense(pixels / 16), int(digit))
        for pixels, digit in zip(data.data[:900], data.target[:900], strict=True)
    ]
    return session.createDataFrame(rows, ["pixels", "digit"]).coalesce(2).cache()


@pytest.fixture(scope="session")
def lines(session: Any) -> Any:
    """``y = 2 x + 1``, which rows with ``weight`` 0 tell lies about; each third row is ``held`` back."""
    rows = [
        (x / 100, 2 * x / 100 + 1 if x % 2 else -9.0, float(x % 2), x % 3 == 0, int(2 * x / 100 + 1))
        for x in range(240)
    ]
    return session.createDataFrame(
        rows, "x double, y double, weight double, held boolean, whole int"
    ).coalesce(1)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    from horovod.spark.common.store import Store

    return Store.create(str(tmp_path / "store"))


def accuracy(rows: Iterable[Any]) -> float:
    """Of rows with the digit and a vector of scores."""
    right = [int(row["digit"]) == int(row["digit__output"].toArray().argmax()) for row in rows]
    return sum(right) / len(right)
