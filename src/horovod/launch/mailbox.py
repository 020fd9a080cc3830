"""Mailboxes, where threads leave things for a reader that waits with poll."""

from __future__ import annotations

import os
import queue
import select
import threading
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Things from any thread for one reader, whose descriptor is readable while there is something new.

    Nobody waits to put something in. After ``close`` what is put in is lost.
    """

    def __init__(self) -> None:
        self._things: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # the descriptor is not closed while it is written to

    def fileno(self) -> int:
        return self._bell

    def put(self, thing: T) -> None:
        self._things.put(thing)
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def take(self) -> list[T]:
        """Return all that is new, in order; after ``close`` what came before."""
        try:
            if self._bell >= 0:
                os.eventfd_read(self._bell)
        except BlockingIOError:
            pass  # nothing new
        found = []
        while not self._things.empty():
            found.append(self._things.get_nowait())
        return found

    def wait(self, timeout_ms: int) -> None:
        """Wait until there is something new, at most so long."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        poller.poll(timeout_ms)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._bell >= 0:
                os.close(self._bell)
                self._bell = -1
