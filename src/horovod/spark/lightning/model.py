"""``TorchModel`` of Lightning: applies a trained module to a DataFrame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from horovod.spark.common.prediction import Predictor
from horovod.spark.lightning.packages import is_lightning
from horovod.spark.torch.model import TorchModel as PlainModel
from horovod.spark.torch.model import TorchPredictor

__all__ = ["TorchModel"]


class TorchModel(PlainModel):
    """A trained LightningModule, or the plain module that was given. ``transform`` adds a column with what
    its ``forward`` returns for each label.

    ``forward`` of a LightningModule takes the features in their order; that of a plain module by the names of
    their columns.
    """

    def _predictor(self) -> Predictor:
        found = super()._predictor()
        model: Any = self._value("model")
        if is_lightning(model) or not isinstance(found, TorchPredictor):
            return found
        return replace(found, names=tuple(self._value("feature_columns")))
