"""Callbacks for ``fit``: start equal, average metrics, adapt the learning rate, keep the best model."""

from __future__ import annotations

from tensorflow import keras

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

BestModelCheckpoint = best_model_checkpoint(keras, __name__)
