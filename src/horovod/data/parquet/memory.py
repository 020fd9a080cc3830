"""Memory of arrays, used again when nobody has them any more, as the system takes long to clear new pages."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayMemory"]

_LEAST_BYTES: Final = 64 << 10
"""Of an array; smaller ones cost less than looking for memory."""


class ArrayMemory:
    """Makes arrays, in memory of earlier ones if they have gone. Threads may call it at once.

    Args:
        keep_bytes: unused memory that is kept for arrays to come.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._returned: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()
        self._lock = Lock()
        self._unused: list[NDArray[np.uint8]] = []  # guarded by _lock

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with whatever there is in its memory."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _LEAST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        lent = np.asarray(_Loan(self._taken(size), self._returned))
        return lent[:size].view(dtype).reshape(shape)

    def forget(self) -> None:
        """Keep nothing that is unused now."""
        with self._lock:
            self._take_back()
            self._unused.clear()

    def _taken(self, size: int) -> NDArray[np.uint8]:
        with self._lock:
            self._take_back()
            # The smallest that is large enough, unless most of it would be of no use.
            fitting = [each for each in self._unused if size <= each.nbytes <= 2 * size]
            if fitting:
                chosen = min(fitting, key=len)
                self._unused = [each for each in self._unused if each is not chosen]
                return chosen
            while self._unused and sum(map(len, self._unused)) > self._keep_bytes:
                self._unused.pop(0)
        return np.empty(size, np.uint8)

    def _take_back(self) -> None:
        try:
            while True:
                self._unused.append(self._returned.get_nowait())
        except Empty:
            return


class _Loan:
    """The owner of an array's memory, which all its views refer to: gives it back when the last one has gone.

    That may be in any thread at any line, also in one that holds a lock: the queue can stand that.
    """

    def __init__(self, memory: NDArray[np.uint8], returned: SimpleQueue[NDArray[np.uint8]]) -> None:
        self._memory = memory
        self._returned = returned
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._returned.put(self._memory)
