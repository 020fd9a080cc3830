"""Elastic training with Keras: ``run`` around a function of a ``KerasState``, and callbacks that keep it."""

from __future__ import annotations

import keras

from horovod._keras.elastic import elastic_classes, runner
from horovod._keras.frameworks import framework

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

(
    KerasState,
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
) = elastic_classes(keras, __name__)

run = runner(framework(keras.backend.backend()))
