"""Applying a trained model to the rows of a DataFrame, in batches, on the executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from horovod.errors import InvalidArgumentError

__all__ = ["BatchPrediction", "Predict", "Predictor", "RowPrediction"]

Predict = Callable[[list[Any]], Sequence[Any]]
"""From one array ``[batch, ...]`` for each feature column to one ``[batch, ...]`` for each label column."""


class Predictor(ABC):
    """A model on its way to the executors."""

    @abstractmethod
    def open(self) -> Predict:
        """Make the model ready in this process, on the CPU."""

    @abstractmethod
    def open_model(self) -> Any:
        """The model itself."""


class BatchPrediction:
    """A function for ``pandas_udf``: from structs of features to structs of outputs ``o0``, ``o1`` ...

    Args:
        labels: columns that the model predicts, for messages.
        wide: for each output, whether it is an array in a row, and not a number.
        batch_size: rows that the model gets at once.
    """

    def __init__(
        self,
        predictor: Predictor,
        features: Sequence[str],
        labels: Sequence[str],
        wide: Sequence[bool],
        batch_size: int,
    ) -> None:
        self._predictor = predictor
        self._features, self._labels = list(features), list(labels)
        self._wide = list(wide)
        self._batch_size = batch_size

    def __call__(self, frames: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        predict = self.open()
        for frame in frames:
            parts: list[list[Any]] = [[] for _ in self._wide]
            for begin in range(0, len(frame), self._batch_size):
                rows = frame.iloc[begin : begin + self._batch_size]
                outputs = self.outputs(predict, [rows[name] for name in self._features], len(rows))
                for part, output in zip(parts, outputs, strict=True):
                    part.append(output)
            yield pd.DataFrame(
                {
                    f"o{index}": _series(part, wide)
                    for index, (part, wide) in enumerate(zip(parts, self._wide, strict=True))
                }
            )

    def open(self) -> Predict:
        """The model, ready in this process."""
        return self._predictor.open()

    def outputs(self, predict: Predict, columns: Sequence[Any], rows: int) -> list[Any]:
        """Outputs of the model as arrays ``[rows, elements]``, for columns of values."""
        inputs = [stacked(name, column) for name, column in zip(self._features, columns, strict=True)]
        return [flat.reshape(rows, -1) for flat in checked_outputs(predict(inputs), self._labels)]


class RowPrediction:
    """A function for ``udf``: from a row of features to its outputs, by a function that users wrote."""

    def __init__(
        self, predictor: Predictor, predict_row: Callable[[Any, Any], Any], labels: Sequence[str]
    ) -> None:
        self._predictor = predictor
        self._predict_row = predict_row
        self._labels = list(labels)
        self._model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}

    def __call__(self, row: Any) -> list[list[float]]:
        """One list of numbers for each label column."""
        if self._model is None:
            self._model = self._predictor.open_model()
        found = checked_outputs(self._predict_row(self._model, row), self._labels)
        return [np.ravel(output).astype(float).tolist() for output in found]


def checked_outputs(found: Any, labels: Sequence[str]) -> list[Any]:
    """Turn the output of a model into one array for each label column."""
    outputs = list(found) if isinstance(found, (list, tuple)) else [found]
    if len(outputs) != len(labels):
        raise InvalidArgumentError(
            f"The model has {len(outputs)} outputs for {len(labels)} label columns: {', '.join(labels)}."
        )
    return [each.detach().cpu().numpy() if hasattr(each, "detach") else np.asarray(each) for each in outputs]


def stacked(name: str, column: Any) -> Any:
    """The values of a column as one array ``[rows, ...]``."""
    values = np.asarray(column)
    if values.dtype != object:
        return values
    try:
        return np.stack([_deep(value) for value in values])
    except ValueError:
        shapes = sorted({np.shape(value) for value in values})
        raise InvalidArgumentError(
            f"Column {name!r} has rows of different shapes: {', '.join(map(str, shapes[:5]))}. All rows of a "
            "feature must have one shape."
        ) from None


def _deep(value: Any) -> Any:
    """An array of what may be an array of arrays."""
    array = np.asarray(value)
    return array if array.dtype != object or array.ndim == 0 else np.stack([_deep(each) for each in array])


def _series(parts: Sequence[Any], wide: bool) -> Any:
    whole = np.concatenate(parts).astype(np.float64) if parts else np.empty((0, 1))
    return list(whole) if wide else whole[:, 0]
