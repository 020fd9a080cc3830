"""Contract of a backend in Python.

There is one object for each process set of two or more ranks. Every member makes its object and calls its
verbs in the same order, all on one thread, the executor: a verb may block without stopping anything but
itself. Only ``abort`` is called by other threads.

Only ``send`` and ``recv`` are required. For a verb that the class does not have, the engine runs its own
algorithm over ``send`` and ``recv``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

__all__ = ["Backend", "Steps", "Verbs"]

Steps = Iterator[object] | None
"""Result of a verb: ``None`` when it is done. Or a generator: then the verb is done when the generator ends.
It yields where it has to wait for other ranks, and is asked again after a nap that grows from 20 µs to 1 ms;
a true value says that something has moved, so it is asked again at once and the operation counts as alive
(``HOROVOD_GLOO_TIMEOUT_SECONDS``).
"""


class Backend:
    """A base for backends that has everything but ``send`` and ``recv``. Deriving from it is convenient, not
    required: any class with the verbs will do.

    Args:
        ranks: the members of the process set, ranks of the world in ascending order. Verbs name a member by
            its place in it.
        rank: the place of this process.
        groups: places of members that are on one host, by host.

    Attributes:
        reproducible: the class promises that equal inputs give equal bits in every run. It is never asked of
            the verbs it does not have: the engine's own algorithms keep that promise.
    """

    reproducible: ClassVar[bool] = False

    def __init__(self, ranks: tuple[int, ...], rank: int, groups: tuple[tuple[int, ...], ...]) -> None:
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.groups = groups

    @classmethod
    def check(cls, rank: int, size: int) -> None:
        """Called in ``init()``, by the thread of the user, before the ranks meet.

        Raises:
            ConfigError: this process cannot take part, and why.
        """

    @classmethod
    def reduces(cls, dtype: int, op: int) -> bool:
        """Return whether ``allreduce`` and ``reducescatterv`` support this ``dtype`` and ``op`` (codes of
        ``horovod._core``). The engine does the others. The same on every rank.
        """
        return True

    def abort(self) -> None:
        """The world has ended: verbs in progress, and all later ones, have to fail soon. Called by any
        thread, at any time, also during a verb.
        """

    def close(self) -> None:
        """The set is not needed any more: all members have done the same. Not called after ``abort``."""


class Verbs(Protocol):
    """All verbs. Buffers are contiguous memory of the user or of the engine: views of bytes, which are closed
    when the verb is done. Those that hold results are writable; what is there before has no meaning unless it
    says so. Zero bytes are legal. Lengths are bytes, one for each member. ``dtype`` and ``op`` are codes of
    ``horovod._core``; ``op`` is SUM, MIN, MAX or PRODUCT (of BOOL: or, and, or, and). Factors, averages and
    the packing of several tensors are done by the engine.
    """

    def send(self, peer: int, data: memoryview) -> Steps:
        """Send to one member. It must not wait for the peer's ``recv`` unless it is a generator that yields
        meanwhile, because members send to each other at the same time. Messages to one member are sent one
        after another, in order.
        """

    def recv(self, peer: int, data: memoryview) -> Steps:
        """Receive from one member as many bytes as its ``send`` has."""

    def allreduce(self, data: memoryview, dtype: int, op: int) -> Steps:
        """Reduce in place: ``data`` holds this member's contribution, and then the result."""

    def allgatherv(self, data: memoryview, out: memoryview, lengths: tuple[int, ...]) -> Steps:
        """Gather: ``out`` gets the ``data`` of all members, one after another, this member's own included."""

    def broadcast(self, data: memoryview, root: int) -> Steps:
        """Broadcast in place: ``data`` of member ``root`` goes to all others."""

    def reducescatterv(
        self, data: memoryview, out: memoryview, lengths: tuple[int, ...], dtype: int, op: int
    ) -> Steps:
        """Reduce ``data`` of all members. Each gets its part of the result; ``lengths`` (equal on all)
        divides it.
        """

    def alltoallv(
        self, data: memoryview, out: memoryview, send_lengths: tuple[int, ...], recv_lengths: tuple[int, ...]
    ) -> Steps:
        """Send each member its part of ``data``, divided by ``send_lengths``. ``out`` gets the parts of all
        members, this member's own included.
        """

    def barrier(self) -> Steps:
        """Return when all members have called it."""
