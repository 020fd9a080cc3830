"""The collectives of ``horovod.torch``.

Of every collective there are up to four forms: ``x`` blocks, returns new tensors and takes part in autograd;
``x_`` blocks and works in place; ``x_async`` and ``x_async_`` return a handle for :func:`poll` and
:func:`synchronize`. A tensor must not be modified, and a result not be read, between submission and
``synchronize``.

All raise ``ValueError`` for what is wrong on this rank alone (dtype, layout, a name in flight, a root that
does not exist) and ``HorovodInternalError`` for what fails between ranks, at the latest in ``synchronize``.
"""

from __future__ import annotations

import atexit
from typing import Any

from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import collectives
from horovod.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from horovod.torch.transfers import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += everywhere.__all__

_basics = everywhere._basics

atexit.register(collectives.table.forget)  # nobody asks any more: lets go of the engine of the last world


def init(*args: Any, **kwargs: Any) -> None:
    """Form the world with all other launched processes: see ``HorovodBasics.init``. Old handles are
    forgotten."""
    _basics.init(*args, **kwargs)


def shutdown(*args: Any, **kwargs: Any) -> None:
    """End the world on every rank; operations that have not started fail with ``HorovodInternalError``."""
    _basics.shutdown(*args, **kwargs)


# -- waiting ------------------------------------------------------------------------------------------------


def poll(handle: int) -> bool:
    """Whether :func:`synchronize` would return at once.

    Raises:
        ValueError: the handle is unknown or already consumed.
    """
    return collectives.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result: a tensor, a tuple for a group, or the pair of
    rows and received numbers of an alltoall.

    The handle is consumed. An unknown or already consumed handle gives ``None``.

    Raises:
        HorovodInternalError: the operation failed.
    """
    return collectives.synchronize(handle)


def join(device: int = -1) -> int:
    """This rank has no more data: wait until every rank has joined, and return the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros: they count in averages, minima,
    maxima and products. All other operations of the global set fail for the others.

    Args:
        device: where a GPU build makes those zeros, -1 for the CPU; has no effect here.

    Raises:
        HorovodInternalError: not initialised; a rank was lost.
    """
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return after every rank of the set has called. Pending asynchronous operations may stay pending.

    Raises:
        TypeError: ``process_set`` is not registered.
        IndexError: it has been removed.
        ValueError: this rank is not in it.
        HorovodInternalError: not initialised; a rank was lost.
    """
    collectives.barrier(process_set)
