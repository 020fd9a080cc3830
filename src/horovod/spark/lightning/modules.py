"""LightningModules: the package that defines them, and one that wraps a plain module with its losses."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import Any

from horovod.spark.common.training import Columns
from horovod.spark.torch.losses import Losses, as_list, labels_like_outputs, metric_groups

__all__ = ["PREFIX", "installed", "is_lightning", "package_of", "wrapped"]

_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
PREFIX = "module."
"""Of the names of the module's tensors in a checkpoint."""


def installed() -> Any:
    """``lightning.pytorch`` if it is there, otherwise ``pytorch_lightning``.

    Raises:
        ModuleNotFoundError: neither is installed.
    """
    for name, module in _PACKAGES.items():
        if importlib.util.find_spec(name) is not None:
            return import_module(module)
    raise ModuleNotFoundError(
        "horovod.spark.lightning needs Lightning 2, which is not installed here: pip install lightning",
        name="lightning",
    )


def is_lightning(module: Any) -> bool:
    """Return whether ``module`` is a LightningModule, of either package."""
    return _name(module) is not None


def package_of(module: Any) -> Any:
    """The package whose ``Trainer`` takes the module; for a plain one the one that is installed."""
    name = _name(module)
    return installed() if name is None else import_module(_PACKAGES[name])


def _name(module: Any) -> str | None:
    for base in type(module).__mro__:
        name = base.__module__.partition(".")[0]
        if name in _PACKAGES and base.__name__ == "LightningModule":
            return name
    return None


def wrapped(module: Any, optimizer: Any, losses: Losses, columns: Columns) -> Any:
    """A LightningModule that calls ``module`` with the features as arguments named after their columns."""
    groups = metric_groups(losses.metrics, columns.labels)
    loss: Any = losses.total()
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
