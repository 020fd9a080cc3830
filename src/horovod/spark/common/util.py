"""Functions that estimators are made with: they prepare data and check arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

from horovod.errors import InvalidArgumentError
from horovod.spark.common.columns import (
    data_type_to_numpy,
    data_type_to_str,
    numpy_type_to_str,
    pyarrow_to_spark_data_type,
    spark_scalar_to_python_type,
)
from horovod.spark.common.dataset import get_simple_meta_from_parquet
from horovod.spark.common.preparation import (
    check_validation,
    clear_training_cache,
    get_dataset_properties,
    prepare_data,
)
from horovod.spark.task import host_hash, is_databricks

__all__ = [
    "check_shape_compatibility",
    "check_validation",
    "clear_training_cache",
    "data_type_to_numpy",
    "data_type_to_str",
    "get_dataset_properties",
    "get_simple_meta_from_parquet",
    "host_hash",
    "is_databricks",
    "numpy_type_to_str",
    "prepare_data",
    "pyarrow_to_spark_data_type",
    "spark_scalar_to_python_type",
    "to_list",
]

T = TypeVar("T")


def to_list(value: T | Sequence[T] | None, length: int) -> list[T] | None:
    """A list of ``length`` values: ``value`` itself, or it again and again. ``None`` stays.

    Raises:
        ValueError: it is a list of another length.
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        return [value] * length  # type: ignore[list-item]
    if len(value) != length:
        raise InvalidArgumentError(f"A list of {length} values is needed, got {len(value)}: {value!r}.")
    return list(value)


def check_shape_compatibility(
    metadata: dict[str, dict[str, Any]],
    feature_columns: Sequence[str],
    label_columns: Sequence[str],
    input_shapes: Sequence[Sequence[int | None]] | None = None,
    output_shapes: Sequence[Sequence[int | None]] | None = None,
    label_shapes: Sequence[Sequence[int | None]] | None = None,
) -> None:
    """Make sure that columns have as many elements as a model takes and gives.

    Args:
        metadata: of the columns; those of unknown size are not looked at.
        input_shapes, output_shapes, label_shapes: one for each column, which may begin with the batch's
            dimension as ``None`` or -1. Labels must have ``label_shapes``, where these are given.

    Raises:
        ValueError: the number of columns or the size of one differs.
    """
    if input_shapes is not None:
        _fit("feature", metadata, feature_columns, "the model's inputs", input_shapes)
    if label_shapes is not None:
        _fit("label", metadata, label_columns, "label_shapes", label_shapes)
    elif output_shapes is not None:
        _fit("label", metadata, label_columns, "the model's outputs", output_shapes)


def _fit(
    kind: str,
    metadata: dict[str, dict[str, Any]],
    columns: Sequence[str],
    what: str,
    shapes: Sequence[Sequence[int | None]],
) -> None:
    if len(columns) != len(shapes):
        raise InvalidArgumentError(
            f"There are {len(columns)} {kind} columns ({_listed(columns)}), but {what} are {len(shapes)}."
        )
    for index, (column, shape) in enumerate(zip(columns, shapes, strict=True)):
        wanted, size = _elements(shape), metadata[column]["shape"]
        if wanted is not None and size is not None and wanted != size:
            raise InvalidArgumentError(
                f"The {kind} column {column!r} has {size} elements in a row, but number {index} of {what} "
                f"has the shape {tuple(shape)}, which is {wanted}."
            )


def _elements(shape: Sequence[int | None]) -> int | None:
    """Of one row; ``None`` if a dimension besides the batch's is open."""
    rest = list(shape)
    if rest and rest[0] in (None, -1):
        rest = rest[1:]
    known = [each for each in rest if each is not None and each >= 0]
    return prod(known) if len(known) == len(rest) else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
