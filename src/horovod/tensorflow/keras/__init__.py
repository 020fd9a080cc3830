"""``import horovod.tensorflow.keras as hvd``: data-parallel training with ``tf.keras``, of either
generation of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow import keras

from horovod._keras.interface import Interface
from horovod._keras.variables import allgather_object as allgather_object
from horovod._keras.variables import broadcast_object as broadcast_object
from horovod._keras.variables import broadcast_variables as broadcast_variables
from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.errors import HorovodInternalError as HorovodInternalError
from horovod.tensorflow.keras import callbacks as callbacks
from horovod.tensorflow.keras import elastic as elastic
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization

_shared = Interface(keras)
Compression = _shared.Compression

if TYPE_CHECKING:  # what the other branch brings
    from horovod._keras.interface import *  # noqa: F403
else:
    globals().update(_shared.functions())
    __all__ = [
        "Compression",
        "HorovodInternalError",
        "SyncBatchNormalization",
        "allgather_object",
        "broadcast_object",
        "broadcast_variables",
        "callbacks",
        "elastic",
        *_shared.functions(),
        *everywhere.__all__,
    ]
