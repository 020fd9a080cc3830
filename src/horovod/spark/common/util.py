"""Functions that estimators are made with: they prepare data and check arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from horovod.errors import InvalidArgumentError
from horovod.spark.common.column_types import (
    data_type_to_numpy,
    data_type_to_str,
    numpy_type_to_str,
    pyarrow_to_spark_data_type,
    spark_scalar_to_python_type,
)
from horovod.spark.common.dataset import get_simple_meta_from_parquet
from horovod.spark.common.host import host_hash, is_databricks
from horovod.spark.common.preparation import clear_training_cache, get_dataset_properties, prepare_data
from horovod.spark.common.shapes import check_shape_compatibility
from horovod.spark.common.validation import check_validation

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
