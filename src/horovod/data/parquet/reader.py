"""The reader of Parquet data: a shard's rows in batches."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from horovod.data.parquet.files import ParquetFiles
from horovod.data.parquet.loading import Arrays, Loading, RowTransform, Transform
from horovod.data.parquet.pipeline import batches_of, loaded
from horovod.data.parquet.plan import Block, blocks, deal, order_of, part_of
from horovod.errors import InvalidArgumentError

__all__ = ["ParquetReader"]

_MEMORY_BYTES: Final = 512 << 20
_MIXED_BYTES: Final = 32 << 20
"""Rows that are put in order together: with 100 MB, far beyond caches, reading took twice the CPU time."""


class ParquetReader:
    """Reads a shard of Parquet data as batches, ``dict`` of column to array.

    Arrays have the shape ``(batch_size,)``, or ``(batch_size, n)`` where a column has lists, which must all
    be equally long. Numbers keep the dtype that they have in the file; decimals become float64, texts
    objects. Arrays may be written to. They are parts of a larger block: copy what is to stay for long.

    Rows are dealt out evenly: shards differ by one row at most, also with fewer row groups than shards. With
    fewer rows than shards some have a row that others have, too. With ``shuffle`` they are dealt out anew in
    every epoch: row groups in another order, and rows of several row groups mixed.

    A loop over an endless reader goes on where the one before has ended; threads read ahead in between, until
    :meth:`close`. Its batches are always full: ranks that take equally many steps never wait for one that has
    run out of rows. With ``epochs`` every loop begins anew, and its last batch may be smaller.

    Args:
        path: a folder, a file or several files, on this machine or as a URL (``hdfs://``, ``s3://``, ``gs://``
            and all that fsspec knows). Folders named ``column=value`` below it are columns.
        columns: which to read; by default all.
        batch_size: rows of a batch.
        cur_shard, shard_count: whose rows, of how many: rank and size.
        shuffle: whether rows come in a random order.
        seed: of that order; equal on all ranks.
        epochs: how many passes over the shard a loop makes; ``None`` = endless.
        steps: after how many batches a loop over an endless reader ends.
        rewind: a loop over an endless reader begins with the first batch of all, as validation should.
        workers: threads that read; 0 = none, everything happens in the loop.
        cache: keep all that the shard has read in memory. Its rows are then the same ones in every epoch, in
            another order.
        transform: called with arrays of many rows, in a thread; returns the arrays to use, with as many
            rows. It is called anew in every epoch.
        row_transform: called with one row, a ``dict`` of column to value, before ``transform``.
        filesystem: of pyarrow or fsspec, in place of what ``path`` says.
        storage_options: for fsspec.
        memory_bytes: about what the rows in memory may take. A quarter each for rows in use, for those being
            read ahead, for putting them in order, and to keep row groups for the next epoch, unless one epoch
            is all there is. Two row groups are in memory in any case. At most 32 MiB, or two row groups, are
            mixed with each other.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        ValueError: an argument makes no sense; there are no rows; a column is missing. In the loop: a null,
            lists of different lengths, a type that is no array. Messages name column, file and row.
        DataStoreError: a file cannot be read, also in the loop: it is gone, or has changed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        batch_size: int,
        cur_shard: int = 0,
        shard_count: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        epochs: int | None = None,
        steps: int | None = None,
        rewind: bool = False,
        workers: int = 2,
        cache: bool = False,
        transform: Transform | None = None,
        row_transform: RowTransform | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self._batch_size = _number("batch_size", batch_size, 1)
        self._shards = _number("shard_count", shard_count, 1)
        self._shard = _number("cur_shard", cur_shard, 0)
        if self._shard >= self._shards:
            raise InvalidArgumentError(f"There is no shard {cur_shard} of {shard_count}: count from 0.")
        self._seed = _number("seed", seed, 0) if shuffle else None
        self._epochs = None if epochs is None else _number("epochs", epochs, 1)
        self._steps = None if steps is None else _number("steps", steps, 1)
        if epochs is not None and steps is not None:
            raise InvalidArgumentError(
                "Give either epochs or steps: steps end the loops of an endless reader."
            )
        self._rewind = rewind
        self._workers = _number("workers", workers, 0)
        self._quarter_bytes = _number("memory_bytes", memory_bytes, 4) // 4
        if columns is not None and (isinstance(columns, str) or not columns):
            raise InvalidArgumentError(f"columns must be a list of names, got {columns!r}.")
        self._fixed = cache
        self._files = ParquetFiles(path, columns, filesystem, storage_options)
        keep_bytes = None if cache else self._quarter_bytes
        self._loading = Loading(self._files, keep_bytes, self._quarter_bytes, transform, row_transform)
        self._begun = 0  # epochs
        self._batches: Iterator[Arrays] | None = None
        self._closed = False

    @property
    def rows(self) -> int:
        """Rows of this shard in an epoch."""
        first, end = part_of(self.total_rows, self._shard, self._shards)
        return end - first

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""
        return sum(group.rows for group in self._files.groups)

    @property
    def endless(self) -> bool:
        """True if the reader has no end of its own."""
        return self._epochs is None

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return list(self._files.columns)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns in the files."""
        return self._files.schema

    def __len__(self) -> int:
        """Batches of a loop.

        Raises:
            TypeError: it is endless.
        """
        if self._epochs is not None:
            return -(-self.rows * self._epochs // self._batch_size)
        if self._steps is None:
            raise TypeError("This reader is endless: give it epochs or steps.")
        return self._steps

    def __iter__(self) -> Iterator[Arrays]:
        """A loop over the batches; only one can run at a time.

        Raises:
            RuntimeError: the reader has been closed.
        """
        if self._closed:
            raise RuntimeError(f"The reader of {self._files.name} has been closed: make a new one.")
        if self._rewind:
            self._end()
            self._begun = 0
        if self._batches is None or self._epochs is not None:
            self._end()
            self._batches = self._stream()
        return self._loop(self._batches)

    def close(self) -> None:
        """End the threads, and let go of the rows in memory. The reader cannot be used again."""
        self._closed = True
        self._end()
        self._loading.forget()

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _loop(self, batches: Iterator[Arrays]) -> Iterator[Arrays]:
        goes_on = self.endless and not self._rewind
        try:
            yield from islice(batches, self._steps)
        except Exception:
            goes_on = False  # the next loop begins anew, not behind the error
            raise
        finally:
            if not goes_on and self._batches is batches:
                self._end()

    def _end(self) -> None:
        stream, self._batches = self._batches, None
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]

    def _stream(self) -> Iterator[Arrays]:
        if self._fixed or self._epochs != 1 or self._begun:
            self._loading.keep()
        blocks_ = loaded(self._plan(), self._loading, self._workers, self._quarter_bytes)
        try:
            yield from batches_of(blocks_, self._batch_size)
        finally:
            blocks_.close()  # type: ignore[attr-defined]

    def _plan(self) -> Iterator[Block]:
        rows = [group.rows for group in self._files.groups]
        sizes = [group.size_bytes for group in self._files.groups]
        mixed_bytes = min(self._quarter_bytes, _MIXED_BYTES)
        for _ in count() if self._epochs is None else range(self._epochs):
            epoch, self._begun = self._begun, self._begun + 1
            order = order_of(len(rows), self._seed, 0 if self._fixed else epoch)
            pieces = deal(rows, order, self._shard, self._shards)
            if self._seed is None:
                yield from blocks(pieces, sizes, mixed_bytes, None)
                continue
            if self._fixed:
                pieces = [pieces[each] for each in order_of(len(pieces), self._seed, epoch)]
            yield from blocks(pieces, sizes, mixed_bytes, (self._seed, epoch, self._shard))


def _number(name: str, given: Any, least: int) -> int:
    try:
        value = operator.index(given)
    except TypeError:
        raise InvalidArgumentError(f"{name} must be an integer, got {given!r}.") from None
    if value < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, got {given!r}.")
    return value
