"""Barrier of ``horovod.arrays``."""

from __future__ import annotations

from horovod.arrays.frontend import collectives
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["barrier"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return after every rank of the set has called. Pending asynchronous operations may stay pending.

    Raises:
        TypeError: ``process_set`` is not registered.
        IndexError: it has been removed.
        ValueError: this rank is not in it.
        HorovodInternalError: a rank was lost.
    """
    collectives.barrier(process_set)
