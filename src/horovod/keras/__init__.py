"""``import horovod.keras as hvd``: data-parallel training with Keras, on TensorFlow, PyTorch or JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod import requirements

requirements.require_keras("horovod.keras")

import keras

from horovod._keras import distributed
from horovod._keras.interface import Interface
from horovod._keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from horovod.collectives.ops import Average as Average
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.groups import Groups
from horovod.keras import callbacks as callbacks
from horovod.keras import elastic as elastic
from horovod.runtime.process_set import ProcessSet as ProcessSet
from horovod.runtime.process_set import global_process_set as global_process_set

_shared = Interface(keras)

if TYPE_CHECKING:  # what the other branch brings
    from horovod._keras.interface import *  # noqa: F403
else:
    globals().update(_shared.names())
    __all__ = ["SyncBatchNormalization", "callbacks", "elastic", *_shared.names()]


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """See ``horovod.tensorflow.keras.DistributedOptimizer``, which has its parameters in another order."""
    return distributed(keras, locals())


DistributedOptimizer.__doc__ = _shared.DistributedOptimizer.__doc__


def allreduce(  # type: ignore[no-redef]
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = NoneCompressor,
) -> Any:
    """Reduce a number, list or array over all ranks; returns a tensor.

    Args:
        average: deprecated, use ``op``.
        op: by default ``Average``.
    """
    if average is True:
        average = None  # the default, which op may replace
    return _shared.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)
