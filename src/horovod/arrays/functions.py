"""Make all ranks start equal: Python objects."""

from __future__ import annotations

from typing import Any

from horovod.arrays.frontend import collectives
from horovod.collectives import objects
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the ``obj`` of ``root_rank``: itself there, a fresh copy elsewhere. See
    ``horovod.collectives.objects``.

    Raises:
        ValueError: ``init()`` has not been called.
    """
    return objects.broadcast_object(collectives, obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return every rank's ``obj`` in rank order.

    Raises:
        ValueError: ``init()`` has not been called.
    """
    return objects.allgather_object(collectives, obj, name, process_set)
