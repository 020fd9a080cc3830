"""Batches for PyTorch."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from horovod.spark.common.datamodule import MapIterable, NVTabularDataModule, ParquetModule
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
