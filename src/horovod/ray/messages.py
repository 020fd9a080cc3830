"""What ranks say while they run, on its way to the callbacks of the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.queue import Empty, Queue

from horovod.errors import LaunchError
from horovod.ray import checks
from horovod.ray.failures import Member

__all__ = ["Listening", "listening", "listening_beside"]

_POLL_S = 0.1
_AT_ONCE = 1000
_PART_S = 5.0  # how long ranks may take to hear that nobody listens any more


class Listening:
    """The queue of one call, and what hears of it."""

    def __init__(self, callbacks: Sequence[Callable[[Any], Any]]) -> None:
        self._callbacks = checks.callbacks_of(callbacks)
        self.queue = Queue(actor_options={"num_cpus": 0})

    def tell(self) -> None:
        """Call the callbacks with all that has come."""
        while True:
            try:
                found = self.queue.get_nowait_batch(min(self.queue.qsize(), _AT_ONCE) or 1)
            except Empty:
                return
            except RayActorError as error:
                raise LaunchError(
                    f"What ranks say reaches no callback any more: the actor of their queue has died. {error}"
                ) from error
            for each in found:
                for callback in self._callbacks:
                    callback(each)


@contextmanager
def listening(
    members: Sequence[Member], callbacks: Sequence[Callable[[Any], Any]] | None
) -> Iterator[Callable[[], None] | None]:
    """What calls the callbacks with the messages of these ranks; None: there are no callbacks."""
    if not callbacks:
        yield None
        return
    heard = Listening(callbacks)
    try:
        ray.get([member.actor.set_queue.remote(heard.queue) for member in members])
        yield heard.tell
        heard.tell()
    finally:
        _part(members, heard.queue)


def _part(members: Sequence[Member], queue: Queue) -> None:
    """End the queue. Ranks that live on, also after a failure, hear of it before their next call, as calls of
    an actor keep their order.
    """
    try:
        with suppress(RayError):
            told = [member.actor.set_queue.remote(None) for member in members]
            ray.wait(told, num_returns=len(told), timeout=_PART_S)
    finally:
        queue.shutdown(force=True)


@contextmanager
def listening_beside(callbacks: Sequence[Callable[[Any], Any]] | None) -> Iterator[Any]:
    """The queue for ranks; callbacks hear of it on a thread of their own, until the end. None: there are no
    callbacks.

    Raises:
        Exception: what a callback has raised, at the end; it was not called any more.
    """
    if not callbacks:
        yield None
        return
    heard = Listening(callbacks)
    over = threading.Event()
    failed: list[Exception] = []

    def listen() -> None:
        try:
            while not over.wait(_POLL_S):
                heard.tell()
            heard.tell()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=listen, name="horovod-ray-callbacks", daemon=True)
    thread.start()
    try:
        yield heard.queue
    finally:
        over.set()
        thread.join()
        heard.queue.shutdown(force=True)
    if failed:
        raise failed[0]
