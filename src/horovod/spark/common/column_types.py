"""Types of columns: Spark's, NumPy's, Python's and Arrow's names of the same thing."""

from __future__ import annotations

import datetime
import decimal
from typing import Any, Final

import numpy as np
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import types

from horovod.errors import InvalidArgumentError

__all__ = [
    "WITHOUT_NUMBERS",
    "as_numbers",
    "class_of",
    "data_type_to_numpy",
    "data_type_to_str",
    "element_of",
    "is_scalar",
    "numpy_type_to_str",
    "pyarrow_to_spark_data_type",
    "spark_scalar_to_python_type",
]

# Spark's type -> NumPy's and Python's.
_SCALARS: Final[dict[type, tuple[Any, type]]] = {
    types.BooleanType: (np.bool_, bool),
    types.ByteType: (np.int8, int),
    types.ShortType: (np.int16, int),
    types.IntegerType: (np.int32, int),
    types.LongType: (np.int64, int),
    types.FloatType: (np.float32, float),
    types.DoubleType: (np.float64, float),
    types.DecimalType: (np.float64, decimal.Decimal),
    types.StringType: (np.str_, str),
    types.BinaryType: (np.bytes_, bytes),
    types.DateType: (np.datetime64, datetime.date),
    types.TimestampType: (np.datetime64, datetime.datetime),
}
WITHOUT_NUMBERS: Final = frozenset({types.StringType, types.BinaryType, types.DateType, types.TimestampType})
"""Types whose values are no numbers, until something makes numbers of them."""
_VECTORS: Final = (VectorUDT, DenseVector, SparseVector)


def class_of(dtype: Any) -> type:
    """The class of a type of Spark, which may be one already."""
    found: type = dtype if isinstance(dtype, type) else type(dtype)
    return found


def element_of(dtype: Any) -> Any:
    """The type of the values in a column, within arrays and arrays of arrays."""
    while isinstance(dtype, types.ArrayType):
        dtype = dtype.elementType
    return dtype


def is_scalar(dtype: Any) -> bool:
    """Return whether values of this type are single ones, with a type of NumPy."""
    return class_of(dtype) in _SCALARS


def as_numbers(dtype: Any) -> Any:
    """The type that values of type ``dtype`` have for a model: decimal numbers are floating-point ones."""
    if isinstance(dtype, types.ArrayType):
        return types.ArrayType(as_numbers(dtype.elementType), dtype.containsNull)
    return types.DoubleType() if isinstance(dtype, types.DecimalType) else dtype


def data_type_to_str(dtype: Any) -> str:
    """The name of a type of Spark, or of a kind of vector: ``"Float"``, ``"DenseVector"``."""
    kind = class_of(dtype)
    _check(kind)
    name: str = kind.__name__
    return "Vector" if kind is VectorUDT else name.removesuffix("Type")


def data_type_to_numpy(dtype: Any) -> Any:
    """NumPy's type of the elements of a column.

    Raises:
        ValueError: there is none.
    """
    kind = class_of(dtype)
    _check(kind)
    if kind is types.ArrayType and not isinstance(dtype, type):
        return data_type_to_numpy(dtype.elementType)
    return _SCALARS[kind][0] if kind in _SCALARS else np.float64


def spark_scalar_to_python_type(dtype: Any) -> type:
    """Python's type of the values of a column.

    Raises:
        ValueError: they are no scalars.
    """
    kind = class_of(dtype)
    if kind not in _SCALARS:
        raise InvalidArgumentError(f"{kind.__name__} is not the type of a scalar.")
    return _SCALARS[kind][1]


def numpy_type_to_str(dtype: Any) -> str:
    """The name of a type of NumPy, such as ``"float32"``.

    Raises:
        ValueError: it is none.
    """
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise InvalidArgumentError(f"{dtype!r} is not a type of NumPy.") from None


def pyarrow_to_spark_data_type(dtype: Any) -> type:
    """Spark's class for a type of Arrow; lists are dense vectors.

    Raises:
        ValueError: there is none.
    """
    import pyarrow
    from pyspark.sql.pandas.types import from_arrow_type

    if (
        pyarrow.types.is_list(dtype)
        or pyarrow.types.is_large_list(dtype)
        or pyarrow.types.is_fixed_size_list(dtype)
    ):
        return class_of(DenseVector)
    try:
        kind: type = type(from_arrow_type(dtype))
    except Exception as error:  # an exception of PySpark, which has changed its name
        raise InvalidArgumentError(f"A column of type {dtype} cannot be trained on: {error}") from error
    _check(kind)
    return kind


def _check(kind: type) -> None:
    if kind not in _SCALARS and kind not in _VECTORS and kind is not types.ArrayType:
        raise InvalidArgumentError(
            f"A column of type {kind.__name__} cannot be trained on: make numbers, arrays or vectors of it."
        )
