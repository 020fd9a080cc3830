"""Batches for Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horovod.spark.common.datamodule import MapIterable, NVTabularDataModule, ParquetModule

__all__ = ["NVTabularDataModule", "ParquetDataModule", "PetastormDataModule"]


class ParquetDataModule(ParquetModule):
    """Batches of arrays by column, endless in training, as Keras counts steps itself.

    Args:
        make_dataset: called with the batches to train on, or to validate on; returns what takes their place,
            for example a ``tf.data.Dataset``.
        args, kwargs: as for :class:`horovod.spark.common.datamodule.ParquetModule`.
    """

    def __init__(self, *args: Any, make_dataset: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._make_dataset = make_dataset

    def train_data(self) -> Iterable[Any]:
        return self._made(MapIterable(super().train_data()))

    def val_data(self) -> Iterable[Any] | None:
        batches = super().val_data()
        return None if batches is None else self._made(MapIterable(batches))

    def _made(self, batches: Iterable[Any]) -> Iterable[Any]:
        if self._make_dataset is None:
            return batches
        made: Iterable[Any] = self._make_dataset(batches)
        return made


PetastormDataModule = ParquetDataModule
"""The name that scripts know. Petastorm itself is not used."""
