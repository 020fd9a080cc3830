"""Batches on their way from the thread that loads them to the loop that uses them."""

from __future__ import annotations

import collections
import threading
from typing import Any

__all__ = ["PassBuffer"]


class PassBuffer:
    """A bounded queue of the items of successive passes over some data, for one producer and one consumer.

    Passes are numbered from 1. The consumer may give up a pass at any item, or close the buffer, without
    waiting for the producer. The producer learns of it from its next call, or while it waits for room.

    Args:
        capacity: most items in the queue; more than 0.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._items: collections.deque[tuple[int, Any]] = collections.deque()
        self._wanted = 1  # items of earlier passes are dropped
        self._begun = 0  # the consumer is, or was, in this pass
        self._closed = False

    # -- the producer ---------------------------------------------------------------------------------------

    def put(self, number: int, item: Any) -> bool:
        """Append ``item`` of pass ``number`` as soon as there is room; ``False`` if it is not wanted any
        more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or number < self._wanted or len(self._items) < self._capacity
            )
            if self._closed or number < self._wanted:
                return False
            self._items.append((number, item))
            self._changed.notify_all()
            return True

    def after(self, number: int) -> int | None:
        """The pass to produce after ``number``; ``None`` if the buffer is closed."""
        with self._changed:
            return None if self._closed else max(number + 1, self._wanted)

    def wait_for_consumer(self, number: int) -> None:
        """Return when the consumer has begun pass ``number`` or a later one, or has closed the buffer."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._begun >= number)

    # -- the consumer ---------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Begin the next pass and return its number; the one before is given up, should it still run.

        Raises:
            RuntimeError: the buffer is closed.
        """
        with self._changed:
            self._refuse_if_closed()
            self._give_up(self._begun)
            self._begun = self._wanted
            self._changed.notify_all()
            return self._begun

    def take(self, number: int) -> Any:
        """The next item of pass ``number``, as soon as there is one.

        Raises:
            RuntimeError: the buffer is closed, or a later pass has begun.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or number < self._wanted or bool(self._items))
            self._refuse_if_closed()
            if number < self._wanted:
                raise RuntimeError("This loop over the data loader has ended: a later one has begun.")
            _, item = self._items.popleft()
            self._changed.notify_all()
            return item

    def give_up(self, number: int) -> None:
        """Items of pass ``number`` are not wanted any more."""
        with self._changed:
            self._give_up(number)
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting, here and in the producer."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    # -- parts ----------------------------------------------------------------------------------------------

    def _give_up(self, number: int) -> None:
        self._wanted = max(self._wanted, number + 1)
        while self._items and self._items[0][0] < self._wanted:
            self._items.popleft()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("The data loader has been closed: make a new one.")
