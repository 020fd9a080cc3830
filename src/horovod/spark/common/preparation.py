"""Writing a DataFrame to a store as Parquet, for ranks to train on; and using again what has been written."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Observation

from horovod.errors import DataStoreError, InvalidArgumentError
from horovod.spark.common.columns import ColumnPlan, Metadata, facts_of, metadata_of, plans_of
from horovod.spark.common.dataset import Claim, Properties, await_files, require_columns, rows_and_bytes
from horovod.spark.common.store.base import Store

__all__ = ["check_validation", "clear_training_cache", "get_dataset_properties", "prepare_data", "split"]

_SEED = 7
"""Of the random split: the same DataFrame is always split alike."""
_ROW_GROUP_BYTES: Final = 16 << 20
"""Smaller than Spark's own: readers shuffle several row groups at a time."""


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


@dataclass(frozen=True)
class _Key:
    """Key of prepared data: data with equal keys are the same. The DataFrame itself is compared, as equal
    plans may read changed files.
    """

    columns: tuple[str, ...]
    validation: float | str | None
    compress_sparse: bool
    train_path: str
    val_path: str


@dataclass
class _Entry:
    """Data at one index of the stores' paths."""

    key: _Key
    frame: weakref.ref[Any]
    properties: Properties
    claim: Claim
    users: int = field(default=0)


_lock = threading.Lock()
# Index -> what has been written there; guarded by _lock, which is held while data are written.
_entries: dict[int, _Entry] = {}


@contextmanager
def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None,
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> Iterator[int]:
    """Write what ranks need of a DataFrame to the store, and give the index of the data there.

    What has been written for the same DataFrame object with the same arguments is used again. Data of
    others are overwritten unless their ``with`` block still runs, here or in another driver.

    Args:
        num_processes: ranks that will read.
        df: is evaluated once, or twice with vectors to look at: cache it if it is costly. With a share in
            ``validation`` its columns are kept by the executors meanwhile, in memory or on their disks.
        label_columns, feature_columns: ``None`` for the latter = all others.
        validation: see :func:`check_validation`.
        sample_weight_col: a further column.
        compress_sparse: columns that have sparse vectors only are written in few numbers.
        partitions_per_process: files of Parquet for each rank, about.
        verbose: above 0, say what is written.

    Raises:
        ValueError: a column is missing, has nulls, rows of different sizes or a type of which no numbers can
            be made; there are no rows; an argument makes no sense.
        DataStoreError: the store cannot be written, or executors write elsewhere than this host reads.
    """
    for name, value in (("num_processes", num_processes), ("partitions_per_process", partitions_per_process)):
        if value < 1:
            raise InvalidArgumentError(f"{name} must be at least 1, got {value}.")
    check_validation(validation, df)
    columns = _columns(df, label_columns, feature_columns, validation, sample_weight_col)
    key = _Key(
        tuple(columns), validation, compress_sparse, store.get_train_data_path(), store.get_val_data_path()
    )
    with _lock:
        index, entry = _found(key, df, store)
        if entry is None:
            index, claim = _claimed(store, index, verbose)
            _entries.pop(index, None)
            try:
                job = _Writing(
                    store, index, max(num_processes, 1), num_processes * partitions_per_process, verbose
                )
                plans = plans_of(df, columns, label_columns, compress_sparse)
                entry = _Entry(key, weakref.ref(df), job.write(df, plans, validation), claim)
            except BaseException:
                claim.release()
                raise
            _entries[index] = entry
        elif verbose:
            print(f"Data: those at {store.get_train_data_path(index)} are used again.")
        entry.users += 1
    try:
        yield index
    finally:
        with _lock:
            entry.users -= 1
            if not entry.users:
                entry.claim.release()


def get_dataset_properties(dataset_idx: int) -> Properties:
    """Return the properties of prepared data: rows to train on, rows to validate on, metadata by column, and
    average bytes of a row.

    Raises:
        ValueError: no data have been prepared under this index.
    """
    with _lock:
        if dataset_idx not in _entries:
            raise InvalidArgumentError(f"No data have been prepared under the index {dataset_idx}.")
        return _entries[dataset_idx].properties


def clear_training_cache() -> None:
    """Use nothing again that has been written."""
    with _lock:
        _entries.clear()


@dataclass(frozen=True)
class _Writing:
    """Writes data to one index of a store."""

    store: Store
    index: int
    least: int
    partitions: int
    verbose: int

    def write(self, df: Any, plans: Sequence[ColumnPlan], validation: float | str | None) -> Properties:
        share = validation if isinstance(validation, float) else 0.2 if validation else 0.0
        train_path = self.store.get_train_data_path(self.index)
        with _kept(df, plans) if isinstance(validation, float) and validation else nullcontext(df) as source:
            train, held_out = split(source, validation)
            facts = [self._write(train, plans, train_path, 1 - share)]
            if held_out is not None:
                facts.append(self._write(held_out, plans, self.store.get_val_data_path(self.index), share))
        if not facts[0]["rows"]:
            raise InvalidArgumentError("The DataFrame has no rows to train on.")
        if held_out is not None and not facts[1]["rows"]:
            raise InvalidArgumentError(f"With validation={validation!r} there are no rows to validate on.")
        metadata: Metadata = metadata_of(plans, facts)
        val_rows = facts[1]["rows"] if held_out is not None else 0
        return facts[0]["rows"], val_rows, metadata, facts[0]["bytes"] / facts[0]["rows"]

    def _write(self, df: Any, plans: Sequence[ColumnPlan], path: str, share: float) -> dict[str, Any]:
        """Write rows, and return facts about them."""
        self.store.check_writable(path)
        files = max(int(self.partitions * share), self.least)
        written = df.select([plan.written() for plan in plans]).coalesce(files)
        observed = Observation()
        (
            written.observe(observed, *facts_of(plans, written))
            .write.mode("overwrite")
            .option("parquet.block.size", str(_ROW_GROUP_BYTES))
            .parquet(path)
        )
        facts: dict[str, Any] = observed.get
        await_files(self.store, df.sparkSession.read.parquet(path).inputFiles() if facts["rows"] else [])
        found = rows_and_bytes(self.store, path)
        if found.rows != facts["rows"]:
            raise DataStoreError(
                f"Spark has written {facts['rows']} rows to {path}, but this host finds {found.rows} there: "
                "executors and driver must reach the same storage. A folder of one machine serves only if "
                "all executors run on it.",
                path=path,
            )
        if self.verbose:
            print(f"Data: {found.rows} rows have been written to {path}.")
        return {**facts, "bytes": found.size_bytes}


@contextmanager
def _kept(df: Any, plans: Sequence[ColumnPlan]) -> Iterator[Any]:
    """The columns, evaluated once: a random split evaluates its source twice, and rows that come in another
    order or number the second time would be in both parts, or in none."""
    columns = df.select([f"`{plan.name}`" for plan in plans])
    if columns.storageLevel.useMemory or columns.storageLevel.useDisk:
        yield columns  # whoever keeps them already goes on doing so
        return
    columns.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield columns
    finally:
        columns.unpersist()


def _columns(
    df: Any,
    labels: Sequence[str],
    features: Sequence[str] | None,
    validation: float | str | None,
    weight: str | None,
) -> list[str]:
    """All columns that are written, features first."""
    if not labels:
        raise InvalidArgumentError("There are no label columns.")
    others = [*labels, *([weight] if weight else []), *([validation] if isinstance(validation, str) else [])]
    chosen = [name for name in df.columns if name not in others] if features is None else features
    if not chosen:
        raise InvalidArgumentError("There are no feature columns.")
    for what, names in (
        ("label column", labels),
        ("feature column", chosen),
        ("column of sample weights", [weight] if weight else []),
    ):
        require_columns(df, what, names)
    return list(dict.fromkeys([*chosen, *others]))


def _found(key: _Key, df: Any, store: Store) -> tuple[int, _Entry | None]:
    """The index where the data are, with what is there; or that where they are to go."""
    for index, entry in _entries.items():
        if entry.key == key and entry.frame() is df:
            paths = (store.get_train_data_path(index), store.get_val_data_path(index))
            # Without validation the other path may have rows of before, which nobody reads.
            unchanged = entry.claim.is_last() and all(
                rows_and_bytes(store, path).rows == rows
                for path, rows in zip(paths, entry.properties[:2], strict=True)
                if rows
            )
            if unchanged and (entry.users or entry.claim.take() is None):
                return index, entry
            break
    index = 0
    while index in _entries and _entries[index].users:
        index += 1
    return index, None


def _claimed(store: Store, index: int, verbose: int) -> tuple[int, Claim]:
    """The first index from this one on that nobody uses, here or in another driver."""
    while True:
        if index not in _entries or not _entries[index].users:
            place = store.get_train_data_path(index)
            claim = Claim(store, place)
            other = claim.take()
            if other is None:
                return index, claim
            if verbose:
                print(f"Data: {place} is in use by {other}; another number is taken.")
        index += 1
