"""``import horovod.tensorflow.keras as hvd``: data-parallel training with ``tf.keras``, of either
generation of Keras."""

from __future__ import annotations

from typing import Any

from tensorflow import keras

from horovod._keras import create_distributed_optimizer
from horovod._keras.interface import Interface
from horovod._keras.variables import allgather_object, broadcast_object, broadcast_variables
from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.errors import HorovodInternalError
from horovod.gradients.groups import Groups, chosen_groups
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "reducescatter",
    "shutdown",
]
__all__ += everywhere.__all__

_shared = Interface(keras)

Compression = _shared.Compression
init = _shared.init
shutdown = _shared.shutdown
PartialDistributedOptimizer = _shared.PartialDistributedOptimizer
broadcast_global_variables = _shared.broadcast_global_variables
allgather = _shared.allgather
broadcast = _shared.broadcast
reducescatter = _shared.reducescatter
load_model = _shared.load_model
allreduce = _shared.allreduce


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = everywhere.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """See ``horovod._keras.create_distributed_optimizer``."""
    return create_distributed_optimizer(
        keras,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        chosen_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )


DistributedOptimizer.__doc__ = create_distributed_optimizer.__doc__
