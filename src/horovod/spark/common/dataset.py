"""Facts about Parquet data in a store: rows, bytes and columns."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from horovod.errors import InvalidArgumentError
from horovod.spark.common.columns import Metadata, pyarrow_to_spark_data_type
from horovod.spark.common.store.base import Store
from horovod.spark.task import is_databricks

__all__ = [
    "Properties",
    "await_files",
    "get_simple_meta_from_parquet",
    "require_columns",
    "rows_and_bytes",
]

Properties = tuple[int, int, Metadata, float]
"""Rows to train on, rows to validate on, metadata of the columns, average bytes of a row."""

_WAIT_S: Final = ("DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS", 30.0)
_POLL_S: Final = ("DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS", 0.1)


@dataclass(frozen=True)
class Footers:
    """Totals of the footers of a data set."""

    rows: int
    size_bytes: int


def rows_and_bytes(store: Store, path: str) -> Footers:
    """Count the rows at ``path``, and the bytes that they take in memory; zero if there is nothing."""
    if not store.is_parquet_dataset(path):
        return Footers(0, 0)
    rows = size_bytes = 0
    for fragment in store.get_parquet_dataset(path).get_fragments():
        footer = fragment.metadata
        rows += footer.num_rows
        size_bytes += sum(footer.row_group(each).total_byte_size for each in range(footer.num_row_groups))
    return Footers(rows, size_bytes)


def get_simple_meta_from_parquet(
    store: Store,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None,
    sample_weight_col: str | None = None,
    dataset_idx: int | None = None,
) -> Properties:
    """Describe data that others have written to the store's paths.

    Args:
        feature_columns: ``None`` = all but labels and weights.

    Returns:
        Rows to train on, rows to validate on, metadata by column, average bytes of a row. Lists count as
        dense vectors of unknown size.

    Raises:
        ValueError: there are no training data, or not all columns.
    """
    path = store.get_train_data_path(dataset_idx)
    train = rows_and_bytes(store, path)
    if not train.rows:
        raise InvalidArgumentError(f"There are no rows of Parquet data to train on at {path}.")
    schema = store.get_parquet_dataset(path).schema
    others = [*label_columns, *([sample_weight_col] if sample_weight_col else [])]
    features = feature_columns or [name for name in schema.names if name not in others]
    metadata: Metadata = {}
    for name in dict.fromkeys([*features, *others]):
        if name not in schema.names:
            raise InvalidArgumentError(
                f"The data at {path} have no column {name!r}; they have {', '.join(map(repr, schema.names))}."
            )
        kind = pyarrow_to_spark_data_type(schema.field(name).type)
        size = None if kind.__name__ == "DenseVector" else 1
        metadata[name] = {
            "spark_data_type": kind,
            "is_sparse_vector_only": False,
            "shape": size,
            "intermediate_format": "nochange",
            "max_size": size,
        }
    held_out = rows_and_bytes(store, store.get_val_data_path(dataset_idx))
    return train.rows, held_out.rows, metadata, train.size_bytes / train.rows


def await_files(store: Store, files: Sequence[str]) -> None:
    """Wait until this host sees files that executors have written: on Databricks that may take seconds.

    Raises:
        RuntimeError: some are not to be seen in time.
    """
    if not is_databricks():
        return
    limit_s, interval_s = (float(os.environ.get(name, default)) for name, default in (_WAIT_S, _POLL_S))
    until = time.monotonic() + limit_s
    while missing := [file for file in files if not store.exists(file)]:
        if time.monotonic() > until:
            raise RuntimeError(
                f"{len(missing)} of {len(files)} files that Spark has written cannot be seen after "
                f"{limit_s:g} s; the first is {missing[0]}. To wait longer set {_WAIT_S[0]}."
            )
        time.sleep(interval_s)


def require_columns(df: Any, what: str, names: Sequence[str]) -> None:
    """Raise ValueError unless a DataFrame has these columns."""
    if missing := [name for name in names if name not in df.columns]:
        raise InvalidArgumentError(
            f"The DataFrame has no {what} {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, df.columns))}."
        )
