"""Elastic training with Keras: ``run`` around a function of a ``KerasState``, and callbacks that keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow import keras

from horovod._keras import elastic as _elastic
from horovod._keras.elastic import elastic_classes
from horovod._keras.frameworks import framework

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

(
    KerasState,
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
) = elastic_classes(keras, __name__)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for ``func(state, ...)``: after a failure of a collective, also within ``fit``, it is called
    again in a new world, with the state of the last commit; after ``HostsUpdatedInterrupt`` with the state as
    it is.

    No collective may be called between ``init()`` and the decorated function.
    """
    return _elastic.run(func, framework(keras.backend.backend()))
