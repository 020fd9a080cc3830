"""``import horovod.tensorflow as hvd``: data-parallel training with TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from horovod import requirements

requirements.require("horovod.tensorflow", "tensorflow")

from horovod.errors import HorovodInternalError as HorovodInternalError
from horovod.tensorflow import compression as compression
from horovod.tensorflow import functions as functions
from horovod.tensorflow import mpi_ops as mpi_ops
from horovod.tensorflow import util as util
from horovod.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer as _DistributedAdasumOptimizer
from horovod.tensorflow.compression import Compression as Compression
from horovod.tensorflow.functions import *  # noqa: F403  (republished)
from horovod.tensorflow.functions import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
from horovod.tensorflow.gradient_aggregation import (
    LocalGradientAggregationHelper as LocalGradientAggregationHelper,
)
from horovod.tensorflow.gradient_reduction import _make_allreduce_grads_fn as _make_allreduce_grads_fn
from horovod.tensorflow.mpi_ops import *  # noqa: F403  (republished)
from horovod.tensorflow.mpi_ops import _allreduce as _allreduce
from horovod.tensorflow.mpi_ops import _grouped_allreduce as _grouped_allreduce
from horovod.tensorflow.mpi_ops import _grouped_reducescatter as _grouped_reducescatter
from horovod.tensorflow.mpi_ops import _reducescatter as _reducescatter
from horovod.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from horovod.tensorflow.optimizer import _DistributedOptimizer as _DistributedOptimizer
from horovod.tensorflow.tape import DistributedGradientTape as DistributedGradientTape
from horovod.tensorflow.tape import PartialDistributedGradientTape as PartialDistributedGradientTape
from horovod.tensorflow.tape import _DistributedGradientTape as _DistributedGradientTape
from horovod.tensorflow.util import _executing_eagerly as _executing_eagerly
from horovod.tensorflow.util import refs_to_vars as refs_to_vars
from horovod.tensorflow.util import split_list as split_list
from horovod.tensorflow.util import vars_to_refs as vars_to_refs

if not TYPE_CHECKING:  # type checkers follow the imports; to some a list that is computed hides them
    __all__ = [
        "BroadcastGlobalVariablesHook",
        "Compression",
        "DistributedGradientTape",
        "DistributedOptimizer",
        "HorovodInternalError",
        "LocalGradientAggregationHelper",
        "PartialDistributedGradientTape",
        "SyncBatchNormalization",  # noqa: F405  (made below)
        "compression",
        "elastic",  # noqa: F405
        "functions",
        "mpi_ops",
        "refs_to_vars",
        "split_list",
        "util",
        "vars_to_refs",
    ]
    __all__ += functions.__all__
    __all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # imports Keras, which takes longer than all of this
        from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "elastic":
        return importlib.import_module("horovod.tensorflow.elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
