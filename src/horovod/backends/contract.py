"""What a backend in Python is asked to do.

There is one object for each process set of two or more ranks. Every member makes its object and calls its
verbs in the same order, all on one thread, the executor: a verb may block without stopping anything but
itself. Only ``abort`` is called by other threads.

Only ``send`` and ``recv`` must be there. A class that also has one of the other verbs does it by itself; for
what it does not have, the engine's own algorithms run over its ``send`` and ``recv``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

__all__ = ["Backend", "Steps", "Verbs"]

Steps = Iterator[object] | None
"""What a verb returns: ``None`` when it is done. Or it is a generator: then it is done when the generator
ends. It yields where it has to wait for other ranks, and is asked again after a nap that grows from 20 µs to
1 ms; a true value says that something has moved, so it is asked again at once and the operation counts as
alive (``HOROVOD_GLOO_TIMEOUT_SECONDS``)."""


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
        """Whether ``allreduce`` and ``reducescatterv`` know these (codes of ``horovod._core``). What they do
        not know is done by the engine. The same on every rank.
        """
        return True

    def abort(self) -> None:
        """The world has ended: whatever is under way has to fail soon, and everything that still comes.
        Called by any thread, at any time, also during a verb.
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
        """To one member. It must not wait for the ``recv`` there unless it is a generator that yields
        meanwhile: members send to each other at the same time. To one member one after another, in order.
        """

    def recv(self, peer: int, data: memoryview) -> Steps:
        """From one member: as many bytes as its ``send`` has."""

    def allreduce(self, data: memoryview, dtype: int, op: int) -> Steps:
        """In place: ``data`` holds what this member brings, then what all members together give."""

    def allgatherv(self, data: memoryview, out: memoryview, lengths: tuple[int, ...]) -> Steps:
        """``out`` gets the ``data`` of all members, one after another, the own one too."""

    def broadcast(self, data: memoryview, root: int) -> Steps:
        """In place: member ``root`` has it, the others get it."""

    def reducescatterv(
        self, data: memoryview, out: memoryview, lengths: tuple[int, ...], dtype: int, op: int
    ) -> Steps:
        """Every member brings ``data``, cut by ``lengths`` (the same on all), and gets its own part of the
        reduction.
        """

    def alltoallv(
        self,
        data: memoryview,
        out: memoryview,
        send_lengths: tuple[int, ...],
        recv_lengths: tuple[int, ...],
    ) -> Steps:
        """``data``, cut by ``send_lengths``, has a part for each member; ``out`` gets theirs, and the own
        one.
        """

    def barrier(self) -> Steps:
        """Done when all members have come."""
