"""``import horovod.tensorflow.keras as hvd``: data-parallel training with ``tf.keras``, of either
generation of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow import keras

from horovod._keras.interface import Interface
from horovod.tensorflow.keras import callbacks as callbacks
from horovod.tensorflow.keras import elastic as elastic
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization

_shared = Interface(keras)

if TYPE_CHECKING:  # what the other branch brings
    from horovod._keras.interface import *  # noqa: F403
else:
    globals().update(_shared.names())
    __all__ = ["SyncBatchNormalization", "callbacks", "elastic", *_shared.names()]
