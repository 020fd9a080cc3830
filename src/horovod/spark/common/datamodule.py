"""Data modules: batches for the ranks of an estimator, by default from Parquet data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from horovod.data.parquet import ParquetReader
from horovod.errors import DataStoreError, InvalidArgumentError
from horovod.spark.common.columns import densify

__all__ = ["Batches", "DataModule", "MapIterable", "NVTabularDataModule", "ParquetModule"]

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class DataModule(ABC):
    """Batches of a rank. Estimators make one on every rank, and use it in a ``with`` block.

    They pass more arguments than any one class needs: those that a class does not know are ignored.

    Args:
        train_dir, val_dir: Parquet data, full paths.
        num_train_epochs: of the whole training.
        has_val: whether there are data to validate on.
        train_batch_size, val_batch_size: rows of a batch.
        shuffle: whether rows to train on come in a random order.
        transform_fn: called with a row, a ``dict`` of column to value; returns the row to use.
        inmemory_cache_all: keep the rank's rows in memory.
        cur_shard, shard_count: rank and size.
        schema_fields: columns to read; ``None`` = all.
        storage_options: for fsspec.
        steps_per_epoch_train, steps_per_epoch_val: batches of an epoch, equal on all ranks.
        verbose: say what happens.
    """

    short_name: ClassVar[str] = ""
    """Name of the data module in messages."""

    def __init__(
        self,
        train_dir: str,
        val_dir: str | None,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        del kwargs
        self.train_dir = train_dir
        self.val_dir = val_dir
        self.num_train_epochs = num_train_epochs
        self.has_val = has_val
        self.train_batch_size = train_batch_size
        self.val_batch_size = val_batch_size
        self.shuffle = shuffle
        self.transform_fn = transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard = cur_shard
        self.shard_count = shard_count
        self.schema_fields = schema_fields
        self.storage_options = storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.verbose = verbose

    def __enter__(self) -> DataModule:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all that is open; by default there is nothing."""
        return

    @abstractmethod
    def train_data(self) -> Iterable[Any]:
        """The batches to train on: each loop has those of an epoch, or they are endless."""

    @abstractmethod
    def val_data(self) -> Iterable[Any] | None:
        """The batches to validate on; ``None`` if there are none."""


class NVTabularDataModule(DataModule):
    """Not there: NVTabular reads on GPUs only, and is no longer developed."""

    short_name = "nvtabular"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "NVTabularDataModule is not supported: NVTabular is no longer developed, and reads on GPUs "
            "only. Use ParquetDataModule, the default: leave data_module out."
        )

    def train_data(self) -> Any:
        raise NotImplementedError

    def val_data(self) -> Any:
        raise NotImplementedError


class Batches(Generic[T]):
    """The batches of a reader as a framework wants them: each loop has those of an epoch.

    Args:
        steps: of an epoch.
        convert: makes what the loop gets.
    """

    def __init__(self, reader: ParquetReader, steps: int, convert: Callable[[Arrays], T]) -> None:
        self.reader = reader
        self._steps = steps
        self._convert = convert

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[T]:
        for batch in islice(self.reader, self._steps):
            yield self._convert(batch)


class ParquetModule(DataModule):
    """Batches by :class:`horovod.data.parquet.ParquetReader`.

    Those to train on go on from epoch to epoch; those to validate on are the same ones in every epoch.

    Args:
        reader_pool_type: ``thread``, or ``dummy`` for reading in the training's own thread. ``process``, too,
            means threads, as reading and decoding need no lock of Python.
        train_reader_worker_count, val_reader_worker_count: how many threads.
        random_seed: of the shuffle; equal on all ranks.
        metadata: of the columns: those that were compressed become dense again.
        num_reader_epochs: how many passes over the rank's rows a loop makes at most; by default as many as
            the steps need. Ranks may then run out of rows at different steps.
        train_rows, val_rows: that were in the data when the steps were computed; ``None`` = unknown.
        args, kwargs: as for :class:`DataModule`.

    Raises:
        ValueError: ``reader_pool_type`` is none of these.
        DataStoreError: once the data are opened: they have other numbers of rows.
    """

    short_name = "parquet"

    def __init__(
        self,
        *args: Any,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 2,
        val_reader_worker_count: int = 2,
        random_seed: int | None = 0,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        num_reader_epochs: int | None = None,
        train_rows: int | None = None,
        val_rows: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if reader_pool_type not in ("thread", "process", "dummy"):
            raise InvalidArgumentError(
                f"reader_pool_type must be 'thread', 'process' or 'dummy', got {reader_pool_type!r}."
            )
        self._threads = reader_pool_type != "dummy"
        self._train_workers = train_reader_worker_count
        self._val_workers = val_reader_worker_count
        self._seed = random_seed or 0
        self._epochs = num_reader_epochs
        self._train_rows = train_rows
        self._val_rows = val_rows
        self._sizes = {
            name: int(each["shape"])
            for name, each in (metadata or {}).items()
            if each["intermediate_format"] == "custom_sparse_format"
        }
        self._readers: list[ParquetReader] = []

    def train_data(self) -> Iterable[Any]:
        reader = self._reader(
            self.train_dir,
            self._train_rows,
            batch_size=self.train_batch_size,
            shuffle=self.shuffle,
            epochs=self._epochs,
            workers=self._train_workers,
        )
        return Batches(reader, self.steps_per_epoch_train, self.convert)

    def val_data(self) -> Iterable[Any] | None:
        if not self.has_val or self.val_dir is None:
            return None
        reader = self._reader(
            self.val_dir,
            self._val_rows,
            batch_size=self.val_batch_size,
            shuffle=False,
            workers=self._val_workers,
            rewind=True,
        )
        return Batches(reader, self.steps_per_epoch_val, self.convert)

    def convert(self, batch: Arrays) -> Any:
        """For subclasses: a batch of arrays as the framework wants it."""
        return batch

    def close(self) -> None:
        """End the threads of all readers."""
        while self._readers:
            self._readers.pop().close()

    def _reader(self, path: str, rows: int | None, *, workers: int, **options: Any) -> ParquetReader:
        row_transform = self.transform_fn
        if row_transform is not None and self._sizes:
            row_transform = _AfterDense(row_transform, self._sizes)
        reader = ParquetReader(
            path,
            columns=self.schema_fields,
            cur_shard=self.cur_shard,
            shard_count=self.shard_count,
            seed=self._seed,
            workers=workers if self._threads else 0,
            cache=self.inmemory_cache_all,
            row_transform=row_transform,
            transform=self._dense if self._sizes and self.transform_fn is None else None,
            storage_options=self.storage_options,
            **options,
        )
        self._readers.append(reader)
        if rows is not None and reader.total_rows != rows:
            raise DataStoreError(
                f"Rank {self.cur_shard} finds {reader.total_rows} rows at {path}, but the steps of an epoch "
                f"were computed from {rows}. Another job may have written its data there meanwhile. Give "
                "each job that runs at the same time a store with a path of its own, and train again.",
                path=path,
            )
        return reader

    def _dense(self, rows: Arrays) -> Arrays:
        return {
            name: densify(values, self._sizes[name]) if name in self._sizes else values
            for name, values in rows.items()
        }


class _AfterDense:
    """A transformation of rows that sees dense vectors."""

    def __init__(
        self, transform: Callable[[dict[str, Any]], Mapping[str, Any]], sizes: Mapping[str, int]
    ) -> None:
        self._transform = transform
        self._sizes = sizes

    def __call__(self, row: dict[str, Any]) -> Mapping[str, Any]:
        for name, size in self._sizes.items():
            if name in row:
                row[name] = densify(np.asarray(row[name])[None], size)[0]
        return self._transform(row)


class MapIterable:
    """Items of ``data``, again and again, each passed through a function.

    Args:
        data: anything to loop over, more than once.
        epochs: how often; ``None`` = without end.
        map_fn: called with each item; by default items stay as they are.
    """

    def __init__(
        self, data: Iterable[Any], epochs: int | None = None, map_fn: Callable[[Any], Any] | None = None
    ) -> None:
        self.data = data
        self.epochs = epochs
        self.map_fn = map_fn

    def __iter__(self) -> Iterator[Any]:
        passes = 0
        while self.epochs is None or passes < self.epochs:
            for item in self.data:
                yield item if self.map_fn is None else self.map_fn(item)
            passes += 1
