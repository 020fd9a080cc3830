"""Callbacks for ``fit``: start equal, average metrics, adapt the learning rate, keep the best model."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras.callbacks import best_model_checkpoint, callback_classes

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
) = callback_classes(keras, __name__)

_BestModelCheckpoint: Any = best_model_checkpoint(keras, __name__)


class BestModelCheckpoint(_BestModelCheckpoint):  # type: ignore[misc]
    __doc__ = _BestModelCheckpoint.__doc__

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch"
    ) -> None:
        super().__init__(monitor, verbose, mode=mode, save_freq=save_freq)
