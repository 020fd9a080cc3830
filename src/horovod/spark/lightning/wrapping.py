"""A LightningModule around a plain module, its optimizer and its losses."""

from __future__ import annotations

from typing import Any

from horovod.spark.common.training import Columns
from horovod.spark.lightning.packages import installed
from horovod.spark.torch.losses import TotalLoss, as_list, labels_like_outputs

__all__ = ["PREFIX", "wrapped"]

PREFIX = "module."
"""Of the names of the module's tensors in a checkpoint."""


def wrapped(module: Any, optimizer: Any, loss: TotalLoss, columns: Columns) -> Any:
    """A LightningModule that calls ``module`` with the features as arguments named after their columns."""
    pl = installed()

    class Wrapped(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        def configure_optimizers(self) -> Any:
            return optimizer

        def training_step(self, batch: Any, index: int) -> Any:
            return self._step(batch, "train_loss")

        def validation_step(self, batch: Any, index: int) -> Any:
            return self._step(batch, "val_loss")

        def _step(self, batch: Any, name: str) -> Any:
            features, labels, weights = columns.split(batch)
            outputs = as_list(self(**dict(zip(columns.features, features, strict=True))))
            found = loss(outputs, labels_like_outputs(outputs, labels), weights)
            self.log(name, found, batch_size=len(features[0]), on_epoch=True, on_step=False)
            return found

    return Wrapped()
