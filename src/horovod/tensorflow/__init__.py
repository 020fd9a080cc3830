"""``import horovod.tensorflow as hvd``: data-parallel training with TensorFlow."""

from __future__ import annotations

from typing import Any

from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.errors import HorovodInternalError
from horovod.tensorflow import compression, functions, mpi_ops, util
from horovod.tensorflow.adasum_optimizer import (
    _DistributedAdasumOptimizer,  # noqa: F401  (others use it)
)
from horovod.tensorflow.compression import (
    Compression,
)
from horovod.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_reduction import (
    _make_allreduce_grads_fn,  # noqa: F401  (others use it)
)
from horovod.tensorflow.hooks import (
    BroadcastGlobalVariablesHook,
)
from horovod.tensorflow.mpi_ops import *  # noqa: F403  (republished)
from horovod.tensorflow.mpi_ops import (
    _allreduce,  # noqa: F401  (others use it)
    _grouped_allreduce,  # noqa: F401  (others use it)
    _grouped_reducescatter,  # noqa: F401  (others use it)
    _reducescatter,  # noqa: F401  (others use it)
)
from horovod.tensorflow.optimizer import (
    DistributedOptimizer,
    _DistributedOptimizer,  # noqa: F401  (others use it)
)
from horovod.tensorflow.reductions import (
    allreduce,
    check_num_rank_power_of_2,
    grouped_allreduce,
    grouped_reducescatter,
    handle_average_backwards_compatibility,
    reducescatter,
)
from horovod.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
    _DistributedGradientTape,  # noqa: F401  (others use it)
)
from horovod.tensorflow.util import (
    _executing_eagerly,  # noqa: F401  (others use it)
    refs_to_vars,
    split_list,
    vars_to_refs,
)

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405  (made below)
    "allgather_object",
    "allreduce",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "compression",
    "functions",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "mpi_ops",
    "reducescatter",
    "refs_to_vars",
    "split_list",
    "util",
    "vars_to_refs",
]
__all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # imports Keras, which takes longer than all of this
        from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
