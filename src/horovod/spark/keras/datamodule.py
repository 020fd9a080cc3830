"""Batches for Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horovod.spark.common.datamodule import NVTabularDataModule, ParquetModule

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
        return self._made(_Endless(super().train_data()))

    def val_data(self) -> Iterable[Any] | None:
        batches = super().val_data()
        return None if batches is None else self._made(_Endless(batches))

    def _made(self, batches: Iterable[Any]) -> Iterable[Any]:
        if self._make_dataset is None:
            return batches
        made: Iterable[Any] = self._make_dataset(batches)
        return made


class _Endless:
    """Loop after loop over some batches."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        while True:
            yield from self._batches


PetastormDataModule = ParquetDataModule
"""The name that scripts know. Petastorm itself is not used."""
