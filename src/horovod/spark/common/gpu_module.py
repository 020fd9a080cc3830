"""The name of a data module that needs another library."""

from __future__ import annotations

from typing import Any

from horovod.spark.common.datamodule import DataModule

__all__ = ["NVTabularDataModule"]


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
