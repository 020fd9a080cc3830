"""Exchange of Python objects, over the collectives of any framework.

Objects travel as cloudpickle. Unpickling runs code of the sender's choice; it happens only on data that came
through the engine, whose every connection was authenticated with the key of this job before a byte was read.

Unlike the reference, the default name does not depend on the type of the object: ranks that pass objects of
different types (a placeholder such as ``None`` on all but the root) still meet.
"""

from __future__ import annotations

from typing import Any

import cloudpickle

from horovod import _runtime
from horovod.collectives import Collectives
from horovod.frontend import T
from horovod.process_set import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    collectives: Collectives[T],
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's ``obj``: itself on the root, a fresh copy elsewhere. Others may pass anything.

    Args:
        root_rank: global rank whose object is sent.
        name: identity across ranks; two broadcasts are named ``<name>.sz`` and ``<name>.t``.

    Raises:
        NotInitializedError: ``init()`` has not been called.
    """
    name = "object" if name is None else name
    frontend = collectives.frontend
    am_root = _runtime.current().topology.rank == root_rank
    payload = bytearray(cloudpickle.dumps(obj)) if am_root else bytearray()

    size = frontend.from_integers([len(payload)])
    collectives.run_broadcast(size, size, root_rank, f"{name}.sz", process_set)
    if not am_root:
        payload = bytearray(frontend.to_integers(size)[0])
    data = frontend.from_bytes(payload)
    collectives.run_broadcast(data, data, root_rank, f"{name}.t", process_set)
    return obj if am_root else cloudpickle.loads(payload)


def allgather_object(
    collectives: Collectives[T],
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return every member's ``obj`` in rank order; also one's own entry is a copy.

    Raises:
        NotInitializedError: ``init()`` has not been called.
    """
    name = "object" if name is None else name
    frontend = collectives.frontend
    _runtime.current()
    payload = bytearray(cloudpickle.dumps(obj))

    sizes = collectives.allgather(frontend.from_integers([len(payload)]), f"{name}.sz", process_set)
    data = collectives.allgather(frontend.from_bytes(payload), f"{name}.t", process_set)
    lengths = frontend.to_integers(collectives.synchronize(sizes))
    everything = memoryview(frontend.to_bytes(collectives.synchronize(data)))
    objects = []
    for length in lengths:
        objects.append(cloudpickle.loads(everything[:length]))
        everything = everything[length:]
    return objects
