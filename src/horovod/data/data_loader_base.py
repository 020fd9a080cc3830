"""The base of data loaders, and a mixin that lets one load ahead in a thread."""

from __future__ import annotations

import collections
import threading
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """A data loader: iterating over it is one pass over its batches."""

    def __len__(self) -> int:
        """Number of batches of a pass."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Make the batches of one pass."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """For subclasses: what to do with a batch before the loop gets it, for example move it to a
        device."""
        return batch


class AsyncDataLoaderMixin:
    """Lets a loader make its batches in a thread, ahead of the loop that uses them.

    Put it before the loader: ``class Loader(AsyncDataLoaderMixin, MyLoader)``. The loop sees what it would
    see without: one pass for each ``for``, from the beginning, also after a ``break``; an exception of
    ``_iterate`` at its place, after which the next ``for`` starts anew. ``_process_batch`` runs in the loop's
    thread. At the end of a pass the thread goes on to the next one, so ``_iterate`` is called once more than
    passes are used. Only one loop at a time can run.

    Call :meth:`close_async_loader` at the end.

    Args:
        async_loader_queue_size: most batches that wait for the loop; 0 = no thread.
        debug_data_loader: print a line for every batch.
        args, kwargs: for the loader.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._buffer = _PassBuffer(async_loader_queue_size) if async_loader_queue_size > 0 else None
        self._thread: threading.Thread | None = None
        print(f"Data loader: up to {async_loader_queue_size} batches are loaded ahead.")
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """One pass over the batches.

        Raises:
            RuntimeError: the loader has been closed, or another loop has begun.
        """
        if self._buffer is None:
            yield from super().__iter__()  # type: ignore[misc]
            return
        buffer, number = self._buffer, self._buffer.begin()
        if self._thread is None:
            print("Data loader: starting the thread.")
            self._thread = threading.Thread(target=self._async_worker, name="data-loader", daemon=True)
            self._thread.start()
        try:
            while (item := buffer.take(number)) is not _END:
                if isinstance(item, _Failure):
                    raise item.error
                if self.debug_data_loader:
                    print("Data loader: next batch.")
                yield self._process_batch(item)  # type: ignore[attr-defined]
        finally:
            buffer.give_up(number)

    def close_async_loader(self) -> None:
        """Stop loading and wait for the thread; loops that are running get a ``RuntimeError``. The loader
        cannot be used again. Nothing to do if it has no thread.

        Warns if the thread is busy making a batch for longer than 10 s; it then ends by itself afterwards.
        """
        if self._buffer is None:
            return
        self._buffer.close()
        thread, self._thread = self._thread, None
        if thread is None or thread is threading.current_thread():
            return
        print("Data loader: closing.")
        thread.join(_CLOSE_LIMIT_S)
        if thread.is_alive():
            warnings.warn(
                f"The thread of {type(self).__name__} is still making a batch, {_CLOSE_LIMIT_S:g} s after it "
                "was told to end; it will end when _iterate() comes back.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _async_worker(self) -> None:
        """In the thread: make pass after pass until the loader is closed."""
        buffer = self._buffer
        assert buffer is not None
        number: int | None = 1
        while number is not None:
            try:
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if not buffer.put(number, batch):
                        break
                else:
                    buffer.put(number, _END)
            except BaseException as error:
                # The loop decides whether to try again.
                buffer.put(number, _Failure(error))
                buffer.wait_for_consumer(number + 1)
            number = buffer.after(number)


class _PassBuffer:
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


_CLOSE_LIMIT_S = 10.0
"""Time that closing waits for the thread, which may be in the middle of loading a batch."""

_END = object()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error
