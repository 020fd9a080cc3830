"""A LightningModule around a plain module, its optimizer and its losses."""

from __future__ import annotations

from typing import Any

from horovod.spark.common.training import Columns
from horovod.spark.lightning.packages import installed
from horovod.spark.torch.losses import TotalLoss, as_list, labels_like_outputs, metric_groups

__all__ = ["PREFIX", "wrapped"]

PREFIX = "module."
"""Of the names of the module's tensors in a checkpoint."""


def wrapped(module: Any, optimizer: Any, loss: TotalLoss, metrics: Any, columns: Columns) -> Any:
    """A LightningModule that calls ``module`` with the features as arguments named after their columns."""
    groups = metric_groups(metrics, columns.labels)
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
            return self._step(batch, "train_")

        def validation_step(self, batch: Any, index: int) -> Any:
            return self._step(batch, "val_")

        def _step(self, batch: Any, prefix: str) -> Any:
            features, labels, weights = columns.split(batch)
            outputs = as_list(self(**dict(zip(columns.features, features, strict=True))))
            labels = labels_like_outputs(outputs, labels)
            found = loss(outputs, labels, weights)
            values = {f"{prefix}loss": found}
            for group in groups:
                for (name, metric), output, label in zip(group, outputs, labels, strict=True):
                    values[prefix + name] = metric(output.detach(), label)
            self.log_dict(values, batch_size=len(features[0]), on_epoch=True, on_step=False)
            return found

    return Wrapped()
