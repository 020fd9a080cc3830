"""Batches from Parquet data, for every framework: the readers, and columns that were compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from horovod.data.parquet import ParquetReader
from horovod.errors import DataStoreError, InvalidArgumentError
from horovod.spark.common.datamodule import DataModule
from horovod.spark.common.vectors import densify

__all__ = ["Batches", "ParquetModule"]

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


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
