"""The base of data loaders, and a mixin that lets one load ahead in a thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

from horovod.data.pass_buffer import PassBuffer

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_CLOSE_LIMIT_S = 10.0
"""Time that closing waits for the thread, which may be in the middle of loading a batch."""

_END = object()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


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
        self._buffer = PassBuffer(async_loader_queue_size) if async_loader_queue_size > 0 else None
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
