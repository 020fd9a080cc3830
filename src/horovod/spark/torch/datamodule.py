"""Batches for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from horovod.spark.common.datamodule import NVTabularDataModule, ParquetModule
from horovod.spark.data_loaders.pytorch_data_loaders import as_tensors

__all__ = ["MapIterable", "NVTabularDataModule", "ParquetDataModule", "PetastormDataModule"]


class ParquetDataModule(ParquetModule):
    """Batches of tensors by column; each loop has those of an epoch.

    Arguments are those of :class:`horovod.spark.common.datamodule.ParquetModule`.
    """

    def convert(self, batch: dict[str, NDArray[Any]]) -> Any:
        return as_tensors(batch)


PetastormDataModule = ParquetDataModule
"""The name that scripts know. Petastorm itself is not used."""


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
