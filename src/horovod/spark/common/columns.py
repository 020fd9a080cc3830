"""Columns of a DataFrame: their types, and how each one is written to Parquet.

Vectors of Spark ML become lists of numbers, or few numbers where most are zero: a sparse vector with n stored
elements is ``[n, indices..., values..., zeros...]``; the zeros make all rows of a column equally long.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import functions, types

from horovod.errors import InvalidArgumentError

__all__ = [
    "WITHOUT_NUMBERS",
    "ColumnPlan",
    "Metadata",
    "as_numbers",
    "class_of",
    "compressed",
    "data_type_to_numpy",
    "data_type_to_str",
    "densify",
    "element_of",
    "facts_of",
    "has_null",
    "is_scalar",
    "is_sparse",
    "is_vector",
    "metadata_of",
    "numpy_type_to_str",
    "plans_of",
    "pyarrow_to_spark_data_type",
    "size",
    "spark_scalar_to_python_type",
    "stored",
]

Metadata = dict[str, dict[str, Any]]
"""By column: ``spark_data_type`` (a class), ``is_sparse_vector_only``, ``shape`` (elements of a row, ``None``
if not known), ``intermediate_format`` (``nochange``, ``array`` or ``custom_sparse_format``), ``max_size``
(most elements that a row stores)."""

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
_FIELDS: Final = "v struct<type: tinyint, size: int, indices: array<int>, values: array<double>>"
"""A vector of Spark ML in JSON."""
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


def densify(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Sparse vectors as dense ones.

    Args:
        rows: shape ``(batch, 1 + 2 * m)``, as Parquet has them; ``m`` is the most that a vector stores.
        size: elements of a vector.

    Returns:
        Shape ``(batch, size)``, dtype of ``rows``.
    """
    batch, width = rows.shape
    most = (width - 1) // 2
    stored_here = rows[:, 0].astype(np.int64)
    dense = np.zeros((batch, size), rows.dtype)
    if most == 0:
        return dense
    places = np.arange(most)[None, :]
    taken = places < stored_here[:, None]
    row, place = np.nonzero(taken)
    indices = rows[row, 1 + place].astype(np.int64)
    dense[row, indices] = rows[row, 1 + stored_here[row] + place]
    return dense


def is_vector(kind: Any) -> bool:
    """Return whether a Spark type is that of vectors, of ``pyspark.ml`` or the older ``pyspark.mllib``."""
    return type(kind).__name__ == "VectorUDT"


def parts(column: Any) -> Any:
    """The fields of a vector, as an expression: ``type`` (0 = sparse), ``size`` and ``indices``, which are
    null of a dense one, and ``values``."""
    # SQL sees nothing of a vector; JSON does, in the same process and with every bit of its numbers.
    text = functions.to_json(functions.struct(column.alias("v")))
    return functions.from_json(text, _FIELDS)["v"]


def is_sparse(column: Any) -> Any:
    """Return an expression that is true where a row's vector is sparse."""
    return parts(column)["type"] == 0


def size(column: Any) -> Any:
    """Return an expression for the number of elements of a vector."""
    fields = parts(column)
    return functions.coalesce(fields["size"], functions.size(fields["values"]))


def stored(column: Any) -> Any:
    """Return an expression for the number of elements that a vector stores."""
    return functions.size(parts(column)["values"])


def compressed(column: Any, most: int) -> Any:
    """The few numbers of a sparse vector that stores ``most`` elements or fewer, as an expression."""
    fields = parts(column)
    count = functions.size(fields["values"])
    return functions.concat(
        functions.array(count.cast("double")),
        fields["indices"].cast("array<double>"),
        fields["values"],
        functions.array_repeat(functions.lit(0.0), (functions.lit(most) - count) * 2),
    )


@dataclass(frozen=True)
class ColumnPlan:
    """One column on its way to Parquet.

    Attributes:
        kind: class of its type.
        format: ``nochange``, ``array`` or ``custom_sparse_format``.
        size, most: elements of a vector that is compressed, and how many of them a row stores at most.
        sparse_only: whether all rows are known to be sparse vectors.
    """

    name: str
    kind: type
    format: str
    size: int | None = None
    most: int | None = None
    sparse_only: bool = False

    def written(self) -> Any:
        """The column of the Parquet data, as an expression."""
        from pyspark.ml.functions import vector_to_array

        column = functions.col(f"`{self.name}`")
        if self.format == "array":
            return vector_to_array(column).alias(self.name)
        if self.format == "custom_sparse_format":
            assert self.most is not None
            return compressed(column, self.most).alias(self.name)
        return column


def plans_of(
    df: Any, columns: Sequence[str], labels: Sequence[str], compress_sparse: bool
) -> list[ColumnPlan]:
    """Plan how to write some columns of a DataFrame. All rows are read once if there are vectors to compress,
    or vectors among the labels: a model's output has to be of the same kind.

    Raises:
        ValueError: a column has a type of which no numbers can be made.
    """
    kinds = {name: df.schema[name].dataType for name in columns}
    looked_at = [name for name in columns if is_vector(kinds[name]) and (compress_sparse or name in labels)]
    found: Mapping[str, Any] = {}
    if looked_at:
        asked = []
        for number, name in enumerate(looked_at):
            column = functions.col(f"`{name}`")
            asked += [
                functions.min(is_sparse(column)).alias(f"sparse{number}"),
                functions.min(~is_sparse(column)).alias(f"dense{number}"),
                functions.max(stored(column)).alias(f"most{number}"),
                functions.min(size(column)).alias(f"smallest{number}"),
                functions.max(size(column)).alias(f"largest{number}"),
            ]
        found = df.agg(*asked).first().asDict()
    plans = []
    for name, kind in kinds.items():
        if not is_vector(kind):
            _check_type(name, kind)
            plans.append(ColumnPlan(name, class_of(kind), "nochange"))
            continue
        if name not in looked_at:
            plans.append(ColumnPlan(name, DenseVector, "array"))
            continue
        number = looked_at.index(name)
        sparse = found[f"sparse{number}"] is True
        if sparse and compress_sparse:
            smallest, largest = found[f"smallest{number}"], found[f"largest{number}"]
            _check_sizes(name, smallest, largest)
            most = int(found[f"most{number}"])
            plans.append(ColumnPlan(name, SparseVector, "custom_sparse_format", largest, most, True))
            continue
        dense = found[f"dense{number}"] is True
        kind_found = SparseVector if sparse else DenseVector if dense else VectorUDT
        plans.append(ColumnPlan(name, kind_found, "array", sparse_only=sparse))
    return plans


def facts_of(plans: Sequence[ColumnPlan], df: Any) -> list[Any]:
    """Expressions over all rows that are written: how many there are, and of each column how many are null,
    and the shortest and longest list."""
    facts = [functions.count(functions.lit(1)).alias("rows")]
    for number, plan in enumerate(plans):
        column = functions.col(f"`{plan.name}`")
        null = column.isNull()
        if isinstance(df.schema[plan.name].dataType, types.ArrayType):
            null = has_null(column, df.schema[plan.name].dataType)
            size = _size(column, df.schema[plan.name].dataType)
            facts += [functions.min(size).alias(f"least{number}"), functions.max(size).alias(f"most{number}")]
        missing = functions.coalesce(null, functions.lit(True)).cast("long")
        facts.append(functions.sum(missing).alias(f"nulls{number}"))
    return facts


def has_null(column: Any, kind: Any) -> Any:
    """Return whether a value of type ``kind``, or one within its arrays, is null, as an expression."""
    if not isinstance(kind, types.ArrayType):
        return column.isNull()
    return column.isNull() | functions.exists(column, lambda value: has_null(value, kind.elementType))


def metadata_of(plans: Sequence[ColumnPlan], facts: Sequence[Mapping[str, Any]]) -> Metadata:
    """Describe the columns that have been written.

    Args:
        facts: of the training data, and of those to validate on if there are any.

    Raises:
        ValueError: a column has nulls, or lists of different lengths.
    """
    rows = sum(each["rows"] for each in facts)
    metadata: Metadata = {}
    for number, plan in enumerate(plans):
        nulls = sum(each[f"nulls{number}"] or 0 for each in facts)
        if nulls:
            raise InvalidArgumentError(
                f"The column {plan.name!r} has nulls in {nulls} of {rows} rows. Fill them (df.na.fill) or "
                "drop such rows (df.na.drop) before training."
            )
        shape: int | None = 1
        if f"least{number}" in facts[0]:
            least = min(each[f"least{number}"] for each in facts if each["rows"])
            most = max(each[f"most{number}"] for each in facts if each["rows"])
            _check_sizes(plan.name, least, most)
            shape = most if plan.size is None else plan.size
        metadata[plan.name] = {
            "spark_data_type": plan.kind,
            "is_sparse_vector_only": plan.sparse_only,
            "shape": shape,
            "intermediate_format": plan.format,
            "max_size": shape if plan.most is None else plan.most,
        }
    return metadata


def _size(column: Any, kind: types.ArrayType) -> Any:
    """Number of elements that a row of arrays has, those of inner arrays included."""
    while isinstance(kind.elementType, types.ArrayType):
        column, kind = functions.flatten(column), kind.elementType
    return functions.size(column)


def _check_sizes(name: str, least: int, most: int) -> None:
    if least != most:
        raise InvalidArgumentError(
            f"The column {name!r} has rows of {least} to {most} elements: all must have equally many."
        )


def _check_type(name: str, kind: Any) -> None:
    element = element_of(kind)
    try:
        data_type_to_str(element)
        if isinstance(kind, types.ArrayType) and is_vector(element):
            raise InvalidArgumentError(
                "arrays of vectors cannot be trained on: make vectors or arrays of them."
            )
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"The column {name!r} does not fit: {error}") from None
