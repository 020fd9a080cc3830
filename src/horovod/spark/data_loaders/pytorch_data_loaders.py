"""Loaders of PyTorch over readers: batches of tensors by column, with a number of steps for each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import from_numpy

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.parquet.pipeline import batches_of
from horovod.errors import InvalidArgumentError

__all__ = [
    "AsyncBatches",
    "PytorchAsyncDataLoader",
    "PytorchDataLoader",
    "PytorchInfiniteAsyncDataLoader",
    "PytorchInfiniteDataLoader",
    "PytorchInmemAsyncDataLoader",
    "PytorchInmemDataLoader",
    "as_tensors",
]

Arrays = dict[str, NDArray[Any]]


def as_tensors(batch: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """The columns of a batch as tensors, which share their memory.

    Raises:
        ValueError: a column has values that PyTorch does not know: texts or dates.
    """
    try:
        return {name: from_numpy(values) for name, values in batch.items()}
    except TypeError:
        name = next(name for name, values in batch.items() if not _known(values))
        raise InvalidArgumentError(
            f"Column {name!r} has values of type {batch[name].dtype}, of which PyTorch has no tensors. Make "
            "numbers of them before training, or leave the column out."
        ) from None


def _known(values: NDArray[Any]) -> bool:
    try:
        from_numpy(values)
    except TypeError:
        return False
    return True


class _Reader(Protocol):
    """The part of a ParquetReader that is used here."""

    @property
    def endless(self) -> bool: ...

    def __iter__(self) -> Iterator[Arrays]: ...


class _Batches(BaseDataLoader):
    """Batches that are there already."""

    def __init__(self, batches: Any) -> None:
        super().__init__()
        self._made = batches

    def __len__(self) -> int:
        return len(self._made)

    def _iterate(self) -> Iterator[Any]:
        return iter(self._made)


class AsyncBatches(AsyncDataLoaderMixin, _Batches):
    """Takes the batches of a loader in a thread, ahead of the loop."""


class PytorchDataLoader(BaseDataLoader):
    """Batches of tensors from a reader.

    Args:
        reader: of arrays by column, such as a :class:`horovod.data.parquet.ParquetReader`. Each loop is one
            over the reader.
        batch_size: rows of a batch, whatever the reader's own batches.
        shuffling_queue_capacity: rows that are put in another order together; 0 = they come as the reader
            gives them.
        name: of the loader, in what it prints.
        limit_step_per_epoch: a loop ends after so many batches; below 1: with the reader.
        verbose: print a line at the end of a loop.
    """

    def __init__(
        self,
        reader: _Reader,
        batch_size: int,
        shuffling_queue_capacity: int = 0,
        name: str = "",
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.reader = reader
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.name = name
        self.limit_step_per_epoch = limit_step_per_epoch
        self.verbose = verbose
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        """Steps of an epoch; 0 if there is no limit."""
        return max(self.limit_step_per_epoch, 0)

    def _iterate(self) -> Iterator[Arrays]:
        number = 0
        for number, batch in enumerate(islice(self._batches(), self._limit()), 1):  # noqa: B007
            yield batch
        if self.verbose:
            print(f"Data loader {self.name}: {number} batches.")

    def _process_batch(self, batch: Arrays) -> Any:
        return as_tensors(batch)

    def _limit(self) -> int | None:
        return self.limit_step_per_epoch if self.limit_step_per_epoch > 0 else None

    def _batches(self) -> Iterator[Arrays]:
        """The batches of a loop, without a limit."""
        return batches_of(self._mixed(self._rows()), self.batch_size)

    def _rows(self) -> Iterator[Arrays]:
        """Rows of the reader, for one loop."""
        return iter(self.reader)

    def _mixed(self, rows: Iterator[Arrays]) -> Iterator[Arrays]:
        if self.shuffling_queue_capacity < 1:
            yield from rows
            return
        for block in batches_of(rows, self.shuffling_queue_capacity):
            order = self._random.permutation(len(next(iter(block.values()))))
            yield {name: values[order] for name, values in block.items()}


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """The same over an endless reader: a loop goes on where the one before has ended.

    Arguments are those of :class:`PytorchDataLoader`.

    Raises:
        ValueError: the reader has an end.
    """

    def __init__(self, reader: _Reader, *args: Any, **kwargs: Any) -> None:
        if not reader.endless:
            raise InvalidArgumentError(
                "PytorchInfiniteDataLoader needs an endless reader: make it without epochs."
            )
        super().__init__(reader, *args, **kwargs)
        self._stream: Iterator[Arrays] | None = None

    def _iterate(self) -> Iterator[Arrays]:
        try:
            yield from super()._iterate()
        except Exception:
            self._stream = None  # the next loop begins anew: one behind the error would be empty
            raise

    def _batches(self) -> Iterator[Arrays]:
        if self._stream is None:
            self._stream = super()._batches()
        return self._stream

    def _rows(self) -> Iterator[Arrays]:
        while True:  # a loop over the reader may have an end, a number of steps
            yield from super()._rows()


class PytorchInmemDataLoader(PytorchDataLoader):
    """Batches of tensors of rows that are read once and stay in memory.

    Args:
        reader: with an end.
        batch_size: rows of a batch.
        num_epochs: how many passes over the rows there are in all; ``None`` = without end.
        name: of the loader, in what it prints.
        shuffle: whether each pass has an order of its own.
        limit_step_per_epoch: a loop ends after so many batches, and the next one goes on there.
        verbose: print a line when the rows have been read.

    Raises:
        ValueError: there is no limit of steps, or the reader is endless.
    """

    def __init__(
        self,
        reader: _Reader,
        batch_size: int,
        num_epochs: int | None,
        name: str = "",
        shuffle: bool = False,
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if limit_step_per_epoch < 1:
            raise InvalidArgumentError("PytorchInmemDataLoader needs limit_step_per_epoch, of 1 or more.")
        if reader.endless:
            raise InvalidArgumentError("PytorchInmemDataLoader needs a reader with an end: epochs=1.")
        super().__init__(reader, batch_size, 0, name, limit_step_per_epoch, verbose)
        self.num_epochs = num_epochs
        self.shuffle = shuffle
        self._stream: Iterator[Arrays] | None = None

    def _iterate(self) -> Iterator[Arrays]:
        if self._stream is None:
            self._stream = batches_of(self._passes(_together(self.reader)), self.batch_size)
        return islice(self._stream, self.limit_step_per_epoch)

    def _passes(self, rows: Arrays) -> Iterator[Arrays]:
        size = len(next(iter(rows.values())))
        if self.verbose:
            print(f"Data loader {self.name}: {size} rows are in memory.")
        for number in count() if self.num_epochs is None else range(self.num_epochs):
            order = np.random.default_rng(number).permutation(size) if self.shuffle else np.arange(size)
            yield {name: values[order] for name, values in rows.items()}


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """:class:`PytorchDataLoader` in a thread, ahead of the loop."""


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """:class:`PytorchInfiniteDataLoader` in a thread, ahead of the loop."""


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """:class:`PytorchInmemDataLoader` in a thread, ahead of the loop."""


def _together(reader: Iterable[Arrays]) -> Arrays:
    parts = list(reader)
    if not parts:
        raise InvalidArgumentError("The reader has no rows.")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
