"""``import horovod.tensorflow.keras as hvd``: data-parallel training with ``tf.keras``, of either
generation of Keras."""

from __future__ import annotations

from typing import Any

from tensorflow import keras

from horovod._keras.interface import Interface
from horovod._keras.variables import allgather_object, broadcast_object, broadcast_variables
from horovod.collectives import Adasum, Average, Max, Min, Product, Sum
from horovod.errors import HorovodInternalError
from horovod.gradient_groups import Groups
from horovod.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_shared = Interface(keras)

Compression = _shared.Compression
init = _shared.init
shutdown = _shared.shutdown
ccl_built = _shared.ccl_built
cross_rank = _shared.cross_rank
cross_size = _shared.cross_size
cuda_built = _shared.cuda_built
ddl_built = _shared.ddl_built
gloo_built = _shared.gloo_built
gloo_enabled = _shared.gloo_enabled
is_homogeneous = _shared.is_homogeneous
is_initialized = _shared.is_initialized
local_rank = _shared.local_rank
local_size = _shared.local_size
mpi_built = _shared.mpi_built
mpi_enabled = _shared.mpi_enabled
mpi_threads_supported = _shared.mpi_threads_supported
nccl_built = _shared.nccl_built
rank = _shared.rank
rocm_built = _shared.rocm_built
size = _shared.size
start_timeline = _shared.start_timeline
stop_timeline = _shared.stop_timeline
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
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """See ``horovod._keras.interface.Interface.optimizer``."""
    return _shared.optimizer(
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
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )


DistributedOptimizer.__doc__ = _shared.optimizer.__doc__
