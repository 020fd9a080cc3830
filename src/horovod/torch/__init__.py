"""``import horovod.torch as hvd``: data-parallel training with PyTorch."""

from __future__ import annotations

import typing

from horovod import requirements

requirements.require("horovod.torch", "torch")

from horovod.errors import HorovodInternalError as HorovodInternalError
from horovod.torch import elastic as elastic
from horovod.torch import functions as functions
from horovod.torch import mpi_ops as mpi_ops
from horovod.torch.compression import Compression as Compression
from horovod.torch.functions import *  # noqa: F403  (republished)
from horovod.torch.mpi_ops import *  # noqa: F403  (republished)
from horovod.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm

if not typing.TYPE_CHECKING:  # type checkers follow the imports; a computed list hides names from some
    __all__ = ["Compression", "DistributedOptimizer", "HorovodInternalError", "SyncBatchNorm", "elastic"]
    __all__ += functions.__all__
    __all__ += mpi_ops.__all__
    __all__.remove("is_homogeneous")
    del is_homogeneous  # noqa: F821
