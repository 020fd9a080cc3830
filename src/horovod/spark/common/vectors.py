"""Vectors of Spark ML in Parquet: as lists of numbers, or in few numbers where most are zero.

A sparse vector with n stored elements becomes ``[n, indices..., values..., zeros...]``; the zeros make all
rows of a column equally long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["compressed", "densify", "is_sparse", "is_vector", "size", "stored"]

_FIELDS = "v struct<type: tinyint, size: int, indices: array<int>, values: array<double>>"


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
    from pyspark.sql import functions

    # SQL sees nothing of a vector; JSON does, in the same process and with every bit of its numbers.
    text = functions.to_json(functions.struct(column.alias("v")))
    return functions.from_json(text, _FIELDS)["v"]


def is_sparse(column: Any) -> Any:
    """Return an expression that is true where a row's vector is sparse."""
    return parts(column)["type"] == 0


def size(column: Any) -> Any:
    """Return an expression for the number of elements of a vector."""
    from pyspark.sql import functions

    fields = parts(column)
    return functions.coalesce(fields["size"], functions.size(fields["values"]))


def stored(column: Any) -> Any:
    """Return an expression for the number of elements that a vector stores."""
    from pyspark.sql import functions

    return functions.size(parts(column)["values"])


def compressed(column: Any, most: int) -> Any:
    """The few numbers of a sparse vector that stores ``most`` elements or fewer, as an expression."""
    from pyspark.sql import functions

    fields = parts(column)
    count = functions.size(fields["values"])
    return functions.concat(
        functions.array(count.cast("double")),
        fields["indices"].cast("array<double>"),
        fields["values"],
        functions.array_repeat(functions.lit(0.0), (functions.lit(most) - count) * 2),
    )
