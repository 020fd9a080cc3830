"""The rows of a block as they arrive, some at a time, from several threads; memory for their arrays."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from horovod.errors import InvalidArgumentError

__all__ = ["ArrayMemory", "Arrays", "Rows", "TransformedRows"]

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


Arrays = dict[str, NDArray[Any]]

_WIDE_BYTES: Final = 64
"""Of a row that is put at its place as it arrives: a cache line. Narrower ones wait for all the others, as
to gather them from a column costs less than to scatter them."""


class Rows:
    """A number of rows, each of which arrives once.

    Args:
        count: of rows.
        order: which row is the first one in the end, and so on; ``None`` = they stay as they are.
        memory: for the arrays.
    """

    def __init__(self, count: int, order: NDArray[np.intp] | None, memory: ArrayMemory) -> None:
        self._count = count
        self._order = order
        self._memory = memory
        self._places: NDArray[np.intp] | None = None
        if order is not None:
            self._places = np.empty_like(order)
            self._places[order] = np.arange(count)
        self._lock = Lock()
        self._columns: Arrays = {}  # their dict is guarded by _lock; each row of an array has one writer

    def put(self, first: int, rows: Arrays) -> None:
        """Rows from number ``first`` on have arrived: all columns, with the shape and dtype of the others."""
        for name, values in rows.items():
            with self._lock:
                if name not in self._columns:
                    self._columns[name] = self._memory.empty((self._count, *values.shape[1:]), values.dtype)
                column = self._columns[name]
            part = slice(first, first + len(values))
            if self._places is None or not _is_wide(column):
                np.copyto(column[part], values, casting="no")
            else:
                assert column.dtype == values.dtype
                _as_bytes(column)[self._places[part]] = _as_bytes(values)

    def arrays(self) -> Arrays:
        """All rows in their order, by column; they have all arrived. To be called once."""
        order = self._order
        if order is None:
            return self._columns
        # One after the other, as the memory of one column is then used for the next.
        return {name: self._in_order(self._columns.pop(name), order) for name in list(self._columns)}

    def _in_order(self, values: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
        if _is_wide(values):
            return values
        target = self._memory.empty(values.shape, values.dtype)
        # "clip" leaves out a check of numbers that are a permutation.
        return np.take(values, order, axis=0, out=target, mode="clip")


class TransformedRows:
    """The same of what transformations return: columns and dtypes are known when all have arrived."""

    def __init__(self, order: NDArray[np.intp] | None) -> None:
        self._order = order
        self._parts: dict[int, Arrays] = {}  # by the number of their first row; storing one is atomic

    def put(self, first: int, rows: Arrays) -> None:
        """As for :class:`Rows`; columns may be others, for which :meth:`arrays` raises."""
        self._parts[first] = rows

    def arrays(self) -> Arrays:
        """All rows in their order, by column.

        Raises:
            ValueError: some have other columns than others.
        """
        parts = [self._parts[first] for first in sorted(self._parts)]
        if {frozenset(each) for each in parts} != {frozenset(parts[0])}:
            raise InvalidArgumentError(
                "The transformation returns other columns for some rows than for others."
            )
        joined = {
            name: parts[0][name] if len(parts) == 1 else np.concatenate([each[name] for each in parts])
            for name in parts[0]
        }
        if self._order is None:
            return joined
        return {name: np.take(values, self._order, axis=0, mode="clip") for name, values in joined.items()}


def _is_wide(values: NDArray[Any]) -> bool:
    return not values.dtype.hasobject and values[:1].nbytes >= _WIDE_BYTES


def _as_bytes(values: NDArray[Any]) -> NDArray[Any]:
    """Each row as one value: rows of many numbers are then copied as a whole."""
    return (
        np.ascontiguousarray(values)
        .reshape(len(values), -1)
        .view(np.dtype((np.void, values[:1].nbytes)))[:, 0]
    )
