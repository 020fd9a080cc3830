"""Messages of running ranks, on their way to the callbacks of the driver."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.queue import Queue

from horovod.errors import LaunchError
from horovod.ray import checks
from horovod.ray.failures import ActorFailed, Member
from horovod.ray.nodes import on_node

__all__ = ["Listening", "listening", "listening_beside"]

_POLL_S = 0.1
_AT_ONCE = 1000
_SOME_S = 1.0
_PART_S = 5.0  # how long ranks may take to hear that nobody listens any more


class Listening:
    """The queue of one call, and what hears of it."""

    def __init__(self, callbacks: Sequence[Callable[[Any], Any]]) -> None:
        self._callbacks = checks.callbacks_of(callbacks)
        here = on_node(ray.get_runtime_context().get_node_id())  # elsewhere it could be lost with a node
        self.queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._taken: deque[Any] = deque()

    def tell(self) -> None:
        """Call the callbacks with all that has come. Only when nobody speaks any more."""
        while self._taken or self._take():
            self._hand_on()

    def tell_some(self) -> None:
        """The same for about a second: ranks may speak faster than callbacks hear."""
        until = time.monotonic() + _SOME_S
        if not self._taken:
            self._take()
        while self._taken and time.monotonic() < until:
            self._hand_on()

    def _take(self) -> bool:
        """Take messages out of the queue; returns whether there were any."""
        try:
            there = min(self.queue.qsize(), _AT_ONCE)
            if there:
                self._taken.extend(self.queue.get_nowait_batch(there))
        except RayActorError as error:
            raise LaunchError(
                f"What ranks say reaches no callback any more: the actor of their queue has died. {error}"
            ) from error
        return bool(there)

    def _hand_on(self) -> None:
        said = self._taken.popleft()
        for callback in self._callbacks:
            callback(said)


@contextmanager
def listening(
    members: Sequence[Member], callbacks: Sequence[Callable[[Any], Any]] | None
) -> Iterator[Callable[[], None] | None]:
    """Yield a function that calls the callbacks with the messages of these ranks; None: there are no
    callbacks.
    """
    if not callbacks:
        yield None
        return
    heard = Listening(callbacks)
    try:
        for member in members:
            member.actor.set_queue.remote(heard.queue)  # the call that follows names who has died
        try:
            yield heard.tell_some
        except ActorFailed:
            heard.tell()  # what they have said before
            raise
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
        BaseException: what a callback has raised, also by sys.exit(), at the end; none was called any more.
    """
    if not callbacks:
        yield None
        return
    heard = Listening(callbacks)
    over = threading.Event()
    failed: list[BaseException] = []

    def listen() -> None:
        try:
            while not over.wait(_POLL_S):
                heard.tell_some()
            heard.tell()
        except BaseException as error:  # a thread would drop SystemExit without a word
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
