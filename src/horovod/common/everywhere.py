"""Names that the modules of all frameworks have in common: they republish them by ``import *``."""

from __future__ import annotations

from typing import Any

from horovod.collectives.ops import Adasum, Average, Max, Min, Product, Sum
from horovod.common.basics import HorovodBasics
from horovod.runtime.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "pin",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_basics = HorovodBasics()

ccl_built = _basics.ccl_built
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
cuda_built = _basics.cuda_built
ddl_built = _basics.ddl_built
gloo_built = _basics.gloo_built
gloo_enabled = _basics.gloo_enabled
is_homogeneous = _basics.is_homogeneous
is_initialized = _basics.is_initialized
local_rank = _basics.local_rank
local_size = _basics.local_size
mpi_built = _basics.mpi_built
mpi_enabled = _basics.mpi_enabled
mpi_threads_supported = _basics.mpi_threads_supported
nccl_built = _basics.nccl_built
pin = _basics.pin
rank = _basics.rank
rocm_built = _basics.rocm_built
size = _basics.size
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``. Old handles are
    forgotten."""
    _basics.init(*args, **kwargs)


def shutdown(*args: Any, **kwargs: Any) -> None:
    """End the world on every rank; operations that have not started fail with ``HorovodInternalError``."""
    _basics.shutdown(*args, **kwargs)
