"""Trained models: transformers that add a column with the output of the model for each label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import DenseVector, SparseVector, Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DecimalType,
    DoubleType,
    FractionalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from horovod.errors import InvalidArgumentError
from horovod.spark.common.columns import (
    WITHOUT_NUMBERS,
    as_numbers,
    class_of,
    element_of,
    has_null,
    is_scalar,
    is_vector,
)
from horovod.spark.common.params import ModelParams
from horovod.spark.common.serialization import Saveable, Shipped

__all__ = ["BatchPrediction", "HorovodModel", "Predict", "Predictor", "RowPrediction"]

Predict = Callable[[list[Any]], Sequence[Any]]
"""From one array ``[batch, ...]`` for each feature column to one ``[batch, ...]`` for each label column."""
_OUTPUTS = "__horovod_outputs"


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


class HorovodModel(ModelParams, Saveable, Model):  # type: ignore[misc]
    """A trained model."""

    @abstractmethod
    def _predictor(self) -> Predictor:
        """The model for the executors."""

    def get_prediction_fn(self) -> Callable[[Any, Any], Any] | None:
        """For subclasses to override: a function of the model and a row (with the feature columns) that
        returns the outputs for this row. By default the model gets batches of rows."""
        return None

    def output_columns(self) -> list[str]:
        """The columns that :meth:`transform` adds, in the order of the labels.

        Raises:
            InvalidArgumentError: ``outputCols`` has another number of names than there are labels.
        """
        labels, names = self._value("label_columns"), self._value("outputCols")
        if names is None:
            return [f"{label}__output" for label in labels]
        if len(names) != len(labels):
            raise InvalidArgumentError(
                f"outputCols has {len(names)} names for {len(labels)} labels: {', '.join(labels)}."
            )
        return list(names)

    def _transform(self, dataset: Any) -> Any:
        names, labels = self.output_columns(), self._value("label_columns")
        self._check_columns(dataset, names)
        widths = self._widths(dataset)
        column = self._predicted(dataset, [width != 1 for width in widths])
        found = dataset.withColumn(_OUTPUTS, column)
        for index, (name, label, width) in enumerate(zip(names, labels, widths, strict=True)):
            output = F.col(_OUTPUTS)[f"o{index}"]
            kind = ((self._value("_metadata") or {}).get(label) or {}).get("spark_data_type", DoubleType)
            found = found.withColumn(name, _as_type_of_label(output, kind, width))
        return found.drop(_OUTPUTS)

    def _check_columns(self, dataset: Any, names: Sequence[str]) -> None:
        missing = [name for name in self._value("feature_columns") if name not in dataset.columns]
        if missing:
            raise InvalidArgumentError(
                f"The DataFrame has no column {missing[0]!r}, which is a feature of the model. It has: "
                f"{', '.join(dataset.columns)}."
            )
        taken = [name for name in names if name in dataset.columns]
        if taken:
            raise InvalidArgumentError(
                f"The DataFrame has a column {taken[0]!r} already. Choose other names with setOutputCols()."
            )

    def _features(self, dataset: Any) -> list[Any]:
        """The feature columns, as Arrow can carry them; a null is an error that names its column."""
        found = []
        for name in self._value("feature_columns"):
            column = F.col(f"`{name}`")
            kind = dataset.schema[name].dataType
            self._check_type(name, kind)
            plain = vector_to_array(column) if is_vector(kind) else column.cast(as_numbers(kind))
            problem = F.raise_error(
                F.lit(f"Column '{name}' has a null. The model needs a value in each row.")
            )
            found.append(F.when(has_null(column, kind), problem).otherwise(plain).alias(name))
        return found

    def _takes_text(self, name: str) -> bool:
        """Return whether the model takes texts in this column."""
        return False

    def _check_type(self, name: str, kind: Any) -> None:
        """
        Raises:
            InvalidArgumentError: no numbers can be made of the values of a feature.
        """
        element = element_of(kind)
        if isinstance(element, StringType) and self._takes_text(name):
            return
        if class_of(element) in WITHOUT_NUMBERS or not (is_vector(kind) or is_scalar(element)):
            raise InvalidArgumentError(
                f"Column {name!r} has the type {kind.simpleString()}, of which the model gets no numbers. "
                "Make numbers of it in the DataFrame, as transformation_fn did in training if there was one, "
                "or override get_prediction_fn()."
            )

    def _plain_features(self) -> list[Any]:
        """The feature columns as they are: vectors are vectors for functions of users."""
        return [F.col(f"`{name}`").alias(name) for name in self._value("feature_columns")]

    def _prediction(self, wide: Sequence[bool]) -> BatchPrediction:
        return BatchPrediction(
            self._predictor(),
            self._value("feature_columns"),
            self._value("label_columns"),
            wide,
            self._value("batch_size"),
        )

    def _row_prediction(self) -> RowPrediction | None:
        predict_row = self.get_prediction_fn()
        if predict_row is None:
            return None
        return RowPrediction(self._predictor(), predict_row, self._value("label_columns"))

    def _widths(self, dataset: Any) -> list[int]:
        """Elements of each output for a row, from the first row. If there is none: from one like those of the
        training, or 1."""
        by_row = self._row_prediction()
        columns = self._plain_features() if by_row else self._features(dataset)
        row = dataset.select(*columns).first()
        if row is None and by_row is None:
            row = self._example()
        if row is None:
            return [1] * len(self._value("label_columns"))
        if by_row is not None:
            return [len(output) for output in by_row(row)]
        prediction = self._prediction([])
        outputs = prediction.outputs(prediction.open(), [[value] for value in row], rows=1)
        return [output.shape[1] for output in outputs]

    def _example(self) -> list[Any] | None:
        """A row of zeros with the sizes of the training data, if these are known."""
        known = self._value("_metadata") or {}
        sizes = [known.get(name, {}).get("shape") for name in self._value("feature_columns")]
        if None in sizes:
            return None
        return [0.0 if size == 1 else [0.0] * size for size in sizes]

    def _what(self) -> str:
        return f"the model of {type(self).__name__}"

    def _predicted(self, dataset: Any, wide: Sequence[bool]) -> Any:
        """A column of structs: a number or an array for each output."""
        fields = [
            StructField(f"o{index}", ArrayType(DoubleType()) if each else DoubleType())
            for index, each in enumerate(wide)
        ]
        by_row = self._row_prediction()
        if by_row is None:
            shipped = Shipped(self._prediction(wide), self._what())
            function = F.pandas_udf(_on_frames(shipped), StructType(fields))
            return function(F.struct(*self._features(dataset)))
        row = F.struct(*self._plain_features())
        shipped = Shipped(by_row, self._what())
        lists = F.udf(lambda values: shipped(values), ArrayType(ArrayType(DoubleType())))(row)
        return F.struct(
            *[
                (lists[index] if each else lists[index][0]).alias(f"o{index}")
                for index, each in enumerate(wide)
            ]
        )


def _on_frames(
    prediction: Callable[[Iterator[Any]], Iterator[Any]],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that ``pandas_udf`` takes: it goes by annotations."""
    from pandas import DataFrame

    def predict(frames: Iterator[Any]) -> Iterator[Any]:
        return prediction(frames)

    predict.__annotations__ = {"frames": Iterator[DataFrame], "return": Iterator[DataFrame]}
    return predict


def _as_type_of_label(output: Any, kind: Any, width: int) -> Any:
    """An output as the label came, or a vector of its elements where the label is a number."""
    if kind is SparseVector:
        return F.udf(_sparse, VectorUDT())(output if width != 1 else F.array(output))
    vector = kind in (DenseVector, VectorUDT)
    if vector or (width != 1 and kind is not ArrayType):
        return array_to_vector(output if width != 1 else F.array(output))
    if kind is ArrayType:
        return output if width != 1 else F.array(output)
    if issubclass(kind, BooleanType):
        return output > 0.5
    if issubclass(kind, IntegralType):
        return F.rint(output).cast(kind())
    return output.cast(kind()) if issubclass(kind, FractionalType) and kind is not DecimalType else output


def _sparse(values: Sequence[float]) -> Any:
    entries = [(index, value) for index, value in enumerate(values) if value]
    return Vectors.sparse(len(values), entries)
