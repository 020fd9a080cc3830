"""Plans for writing each column to Parquet, with the conditions that all its rows must meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import functions
from pyspark.sql.types import ArrayType

from horovod.errors import InvalidArgumentError
from horovod.spark.common.column_types import class_of, data_type_to_str, element_of
from horovod.spark.common.vectors import compressed, is_sparse, is_vector, size, stored

__all__ = ["ColumnPlan", "Metadata", "facts_of", "has_null", "metadata_of", "plans_of"]

Metadata = dict[str, dict[str, Any]]
"""By column: ``spark_data_type`` (a class), ``is_sparse_vector_only``, ``shape`` (elements of a row, ``None``
if not known), ``intermediate_format`` (``nochange``, ``array`` or ``custom_sparse_format``), ``max_size``
(most elements that a row stores)."""


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
        if isinstance(df.schema[plan.name].dataType, ArrayType):
            null = has_null(column, df.schema[plan.name].dataType)
            size = _size(column, df.schema[plan.name].dataType)
            facts += [functions.min(size).alias(f"least{number}"), functions.max(size).alias(f"most{number}")]
        missing = functions.coalesce(null, functions.lit(True)).cast("long")
        facts.append(functions.sum(missing).alias(f"nulls{number}"))
    return facts


def has_null(column: Any, kind: Any) -> Any:
    """Return whether a value of type ``kind``, or one within its arrays, is null, as an expression."""
    if not isinstance(kind, ArrayType):
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


def _size(column: Any, kind: ArrayType) -> Any:
    """Number of elements that a row of arrays has, those of inner arrays included."""
    while isinstance(kind.elementType, ArrayType):
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
        if isinstance(kind, ArrayType) and is_vector(element):
            raise InvalidArgumentError(
                "arrays of vectors cannot be trained on: make vectors or arrays of them."
            )
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"The column {name!r} does not fit: {error}") from None
