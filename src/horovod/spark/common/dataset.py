"""Data sets in a store: their rows, bytes and columns, and the claims of drivers to their places."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from horovod.errors import DataStoreError, InvalidArgumentError
from horovod.spark.common.columns import Metadata, pyarrow_to_spark_data_type
from horovod.spark.common.store.base import Store, user_name
from horovod.spark.task import is_databricks

__all__ = [
    "Claim",
    "Properties",
    "await_files",
    "get_simple_meta_from_parquet",
    "require_columns",
    "rows_and_bytes",
]

_LEASE_S: Final = 120.0
"""Time after which the place of a killed driver is free. Clocks of drivers must agree that well."""

_RENEWAL_S: Final = 20.0

_LOOK_AGAIN_S: Final = 0.2
"""Stores have no lock: of two drivers that write at the same moment the last one has the claim. The other one
sees that when it looks again, if whoever found the place free has written by then."""

_DRIVER: Final = uuid.uuid4().hex


class Claim:
    """A file beside the data that says who uses them.

    It stays when the driver is done: while its name is in there nobody else has written to the place.

    Args:
        place: path of the data.
    """

    def __init__(self, store: Store, place: str, driver: str = _DRIVER) -> None:
        self._store = store
        self._path = f"{place}.claim"
        self._driver = driver
        self._done = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> str | None:
        """Claim the place until :meth:`release`; returns who has it, if somebody else does.

        Raises:
            DataStoreError: the store cannot be written.
        """
        found = self._read()
        if found.get("driver") != self._driver and found.get("until", 0) > time.time():
            return _name(found)
        self._write(time.time() + _LEASE_S)
        time.sleep(_LOOK_AGAIN_S)
        found = self._read()
        if found.get("driver") != self._driver:
            return _name(found)
        self._done.clear()
        self._renewing = threading.Thread(target=self._renew, name="store-claim", daemon=True)
        self._renewing.start()
        return None

    def is_last(self) -> bool:
        """True while nobody else has claimed the place."""
        return bool(self._read().get("driver") == self._driver)

    def release(self) -> None:
        """Let others have the place. A store that fails keeps them away until the lease ends."""
        self._done.set()
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None
        self._extend(0)

    def _renew(self) -> None:
        while not self._done.wait(_RENEWAL_S):
            self._extend(time.time() + _LEASE_S)

    def _extend(self, until: float) -> None:
        try:
            if self.is_last():
                self._write(until)
        except OSError:
            pass  # the next time it may go, and nobody waits for it

    def _write(self, until: float) -> None:
        who = {
            "driver": self._driver,
            "user": user_name(),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }
        self._store.write_text(self._path, json.dumps({**who, "until": until}))

    def _read(self) -> dict[str, Any]:
        if not self._store.exists(self._path):
            return {}
        try:
            found = json.loads(self._store.read(self._path))
        except FileNotFoundError:
            return {}
        except ValueError:
            raise DataStoreError(
                f"{self._path} should say which driver uses the data beside it, and has something else. "
                "Remove it, or give the store another path.",
                path=self._path,
            ) from None
        return found if isinstance(found, dict) else {}


def _name(found: dict[str, Any]) -> str:
    return f"{found.get('user')} on {found.get('host')} (process {found.get('process')})"


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
