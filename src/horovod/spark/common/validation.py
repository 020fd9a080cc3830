"""Choice of the rows that a model is validated on."""

from __future__ import annotations

from typing import Any

from horovod.errors import InvalidArgumentError

__all__ = ["check_validation", "split"]

_SEED = 7
"""Of the random split: the same DataFrame is always split alike."""


def check_validation(validation: float | str | None, df: Any = None) -> None:
    """Make sure that ``validation`` says which rows to validate on.

    Args:
        validation: ``None``, a share from 0 to below 1, or the name of a column: of booleans, or of numbers
            that are above 0 for rows to validate on.
        df: the DataFrame that must have the column.

    Raises:
        ValueError: it does not.
    """
    if validation is None:
        return
    if isinstance(validation, bool) or not isinstance(validation, int | float | str):
        raise InvalidArgumentError(
            f"validation must be a share (0.2) or the name of a column, got {type(validation).__name__}."
        )
    if not isinstance(validation, str):
        if not 0 <= validation < 1:
            raise InvalidArgumentError(f"validation must be at least 0 and below 1, got {validation}.")
        return
    if df is None:
        return
    if validation not in df.columns:
        raise InvalidArgumentError(
            f"validation names the column {validation!r}, which is not there; there are "
            f"{', '.join(map(repr, df.columns))}."
        )
    kind = df.schema[validation].dataType
    if kind.typeName() not in ("boolean", "byte", "short", "integer", "long", "float", "double", "decimal"):
        raise InvalidArgumentError(
            f"The validation column {validation!r} has the type {kind.simpleString()}: it must have "
            "booleans or numbers."
        )


def split(df: Any, validation: float | str | None) -> tuple[Any, Any]:
    """The DataFrames to train on and to validate on; the latter is ``None`` if there is to be none.

    Rows whose validation column is null are among those to train on: whoever writes them sees the null.
    """
    from pyspark.sql import functions

    if not validation:
        return df, None
    if isinstance(validation, str):
        chosen = functions.coalesce(functions.col(validation).cast("double") > 0, functions.lit(False))
        return df.filter(~chosen), df.filter(chosen)
    train, held_out = df.randomSplit([1.0 - validation, validation], _SEED)
    return train, held_out
