"""Data modules, from which the ranks of an estimator get their batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar

__all__ = ["DataModule"]


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
