"""Exchange of Python objects, over the collectives of any framework.

Objects travel as cloudpickle. Unpickling runs code of the sender's choice; it happens only on what carries
the tag of its sender, made with the key of this job for this operation (``bootstrap/trust/signing.py``):
whatever moves the bytes, nobody on the way can put something else in their place.

An object that cannot be pickled fails on all ranks: its owner sends the reason in its place, as the others
wait for something from it. The world goes on afterwards.

Unlike the reference, the default name does not depend on the type of the object: ranks that pass objects of
different types (a placeholder such as ``None`` on all but the root) still meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from horovod.collectives.forms import Collectives
from horovod.collectives.frontend import T
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set

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
        ValueError: the root cannot pickle ``obj``; on the root the exception of pickle.
        AuthenticationError: what came is not what the root sent.
    """
    name = "object" if name is None else name
    frontend = collectives.frontend
    runtime = lifecycle.current()
    am_root = runtime.topology.rank == root_rank
    payload, failure = _pickled(obj) if am_root else (bytearray(), None)

    size = frontend.from_integers([len(payload) + runtime.signer.tag_bytes])
    collectives.run_broadcast(size, size, root_rank, f"{name}.sz", process_set)
    # Numbered now: if the exchange of sizes fails, it fails on all ranks.
    operation = runtime.signer.next("broadcast_object", process_set.ranks or (), name)
    if am_root:
        payload += runtime.signer.tag(operation, root_rank, payload)
    else:
        payload = bytearray(frontend.to_integers(size)[0])
    data = frontend.from_bytes(payload)
    collectives.run_broadcast(data, data, root_rank, f"{name}.t", process_set)
    if failure is not None:
        raise failure
    if am_root:
        return obj
    arrived = cloudpickle.loads(runtime.signer.check(operation, root_rank, memoryview(payload)))
    _check_sent([root_rank], [arrived])
    return arrived


def allgather_object(
    collectives: Collectives[T],
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return every member's ``obj`` in rank order; also one's own entry is a copy.

    Raises:
        NotInitializedError: ``init()`` has not been called.
        ValueError: a member cannot pickle its ``obj``; on that member the exception of pickle.
        AuthenticationError: what came from a member is not what it sent.
    """
    name = "object" if name is None else name
    frontend = collectives.frontend
    runtime = lifecycle.current()
    payload, failure = _pickled(obj)
    members = process_set.ranks or [runtime.topology.rank]

    sizes = collectives.allgather(
        frontend.from_integers([len(payload) + runtime.signer.tag_bytes]), f"{name}.sz", process_set
    )
    operation = runtime.signer.next("allgather_object", process_set.ranks or (), name)
    payload += runtime.signer.tag(operation, runtime.topology.rank, payload)
    data = collectives.allgather(frontend.from_bytes(payload), f"{name}.t", process_set)
    lengths = frontend.to_integers(collectives.synchronize(sizes))
    everything = memoryview(frontend.to_bytes(collectives.synchronize(data)))
    pickles = []
    for sender, length in zip(members, lengths, strict=True):
        pickles.append(runtime.signer.check(operation, sender, everything[:length]))
        everything = everything[length:]
    if failure is not None:
        raise failure
    arrived = [cloudpickle.loads(pickle) for pickle in pickles]
    _check_sent(members, arrived)
    return arrived


@dataclass(frozen=True)
class _Unsent:
    """Sent in place of an object that its owner cannot pickle."""

    kind: str
    reason: str


def _pickled(obj: Any) -> tuple[bytearray, Exception | None]:
    """The pickle of ``obj``; if there is none, that of an `_Unsent`, and the exception."""
    try:
        return bytearray(cloudpickle.dumps(obj)), None
    except Exception as failure:
        unsent = _Unsent(type(obj).__name__, f"{type(failure).__name__}: {failure}")
        return bytearray(cloudpickle.dumps(unsent)), failure


def _check_sent(senders: Sequence[int], arrived: Sequence[Any]) -> None:
    for sender, each in zip(senders, arrived, strict=True):
        if isinstance(each, _Unsent):
            raise InvalidArgumentError(
                f"Rank {sender} could not pickle its object, a {each.kind}: {each.reason}. Send what the "
                "others need to make one, for example numbers, texts or arrays."
            )
