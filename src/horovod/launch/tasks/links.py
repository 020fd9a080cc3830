"""The launcher's side of tasks: who has come, who is gone, and a link to the agent of each.

One thread talks to all of them through the store that this process serves. It never waits: what the store
brings is left for it, and the pipes of links do not block.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.errors import LaunchError, RendezvousError
from horovod.launch.mailbox import Mailbox
from horovod.launch.tasks.messages import ARRIVED, TASK, Arrival, bytes_of, down_key, text_of

__all__ = ["Left", "BadMessage", "TaskLink", "Tasks"]

_CLIENT_S = 10.0
_READ_BYTES = 1 << 16
_KILLED = -9
_LOST = 1


@dataclass(frozen=True)
class Left:
    """A task that had arrived is gone: it was lost, or has been dismissed."""

    task: str


@dataclass(frozen=True)
class BadMessage:
    """Somebody who knows the key says what no task of ours would."""

    error: LaunchError


class Tasks:
    """All tasks of a job. `news` has `Arrival`, `Left` and `BadMessage`, in order.

    Raises:
        RendezvousError: the store does not answer.
    """

    def __init__(self, store: StoreServer, key: bytes) -> None:
        self.news: Mailbox[Arrival | Left | BadMessage] = Mailbox()
        self._store = store
        self._calls: Mailbox[Callable[[], None]] = Mailbox()
        # Of the thread:
        self.selector = selectors.DefaultSelector()
        self._known: dict[str, Arrival] = {}
        self._links: dict[str, TaskLink] = {}
        self._spoken: dict[str, int] = {}  # how many words each task was told
        self._gone: set[str] = set()
        self._over: str | None = None  # why the job is over for tasks that come now
        self._closing = False
        self._client = StoreClient(store.address, key, _CLIENT_S, "the launching process", job=store.job)
        self._client.watch(TASK, -1)
        store.observe(ARRIVED, lambda task, value: self.call(partial(self._arrived, task, value)))
        store.observe(TASK, lambda rest, value: self.call(partial(self._heard, rest, value)))
        self.selector.register(self._calls, selectors.EVENT_READ, self._make_calls)
        self.selector.register(self._client, selectors.EVENT_READ, self._look_for_lost)
        self._thread = threading.Thread(target=self._run, name="tasks", daemon=True)
        self._thread.start()

    def link(self, arrival: Arrival, why_lost: str) -> TaskLink:
        """A link to an agent that the task starts now. ``why_lost``: what to say if the task goes away. From
        any thread.
        """
        link = TaskLink(self, arrival.task, why_lost)
        self.call(partial(self._begin, link))
        return link

    def dismiss(self, task: str, why: str = "") -> None:
        """The job is over for a task; with a reason it fails. From any thread. Idempotent."""
        self.call(partial(self._dismiss, task, why))

    def dismiss_all(self, why: str = "") -> None:
        """Dismiss the tasks that are there, and those that still come."""
        self.call(partial(self._dismiss_all, why))

    def close(self) -> None:
        """Talk to nobody any more. Idempotent."""
        if self._thread.is_alive():
            self.call(self._close)
            self._thread.join()
        self._calls.close()
        self.news.close()

    # What links use.

    def call(self, call: Callable[[], None]) -> None:
        """Let the thread do it."""
        self._calls.put(call)

    def say(self, task: str, word: dict[str, Any]) -> None:
        """On the thread."""
        number = self._spoken.get(task, 0)
        self._spoken[task] = number + 1
        self._store.put(down_key(task, number), word)

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                ready = self.selector.select()
                # What a task has said before it went is taken first.
                for key, _ in sorted(ready, key=lambda each: each[0].data != self._make_calls):
                    if self.selector.get_map().get(key.fileobj) == key:  # not closed a moment ago
                        key.data()
        finally:
            for link in list(self._links.values()):
                link.end(_LOST)
            self._client.close()
            self.selector.close()

    def _make_calls(self) -> None:
        for call in self._calls.take():
            call()

    def _close(self) -> None:
        self._closing = True

    def _arrived(self, task: str, value: Any) -> None:
        try:
            arrival = Arrival.understood(task, value)
        except LaunchError as error:
            self.news.put(BadMessage(error))
            return
        if task not in self._known:
            self._known[task] = arrival
            self.news.put(arrival)
            if self._over is not None:
                self._dismiss(task, self._over)

    def _heard(self, rest: str, value: Any) -> None:
        """``rest``: ``T/up/N/``. Words of a task come in order, as it waits for each to be taken."""
        task, _, way = rest.partition("/")
        if not way.startswith("up/"):
            return
        self._store.forget(TASK + rest)
        link = self._links.get(task)
        if link is None:
            return
        try:
            match value:
                case {"data": str(text)}:
                    link.take(bytes_of(text))
                    return
                case {"ended": int(status)}:
                    link.end(status)
                    return
        except ValueError:
            pass
        self.news.put(BadMessage(LaunchError(f"Task {task} has said what makes no sense.")))

    def _look_for_lost(self) -> None:
        try:
            self._client.pump()
        except RendezvousError:  # the store is gone, which is ours
            self.selector.unregister(self._client)
            return
        for scope in list(self._client.aborted):
            del self._client.aborted[scope]
            self._left(scope.removeprefix(TASK).rstrip("/"))

    def _left(self, task: str) -> None:
        if task in self._gone:
            return
        self._gone.add(task)
        link = self._links.get(task)
        if link is not None:
            link.why = link.why_lost
            link.end(_LOST)
        self.news.put(Left(task))

    def _begin(self, link: TaskLink) -> None:
        if link.task in self._gone or link.task in self._links:
            link.why = link.why_lost
            link.end(_LOST)
            return
        self._links[link.task] = link
        self.say(link.task, {"begin": True})
        link.watch()

    def _dismiss(self, task: str, why: str) -> None:
        if task not in self._gone:
            self._gone.add(task)
            self.say(task, {"over": why})

    def _dismiss_all(self, why: str) -> None:
        self._over = why
        for task in self._known:
            self._dismiss(task, why)


class TaskLink:
    """A `Link` (`agent_client.connection`) through the store, to the agent of one task."""

    def __init__(self, owner: Tasks, task: str, why_lost: str) -> None:
        self.task = task
        self.why = ""
        self.why_lost = why_lost
        self._owner = owner
        self._over = threading.Event()
        self._status = 0
        self._pending = bytearray()  # for the pipe to the reader
        self._ending = False
        self._watched = False
        self._from, to_us = os.pipe()
        from_us, self._to = os.pipe()
        errors, nobody = os.pipe()
        os.close(nobody)
        for end in (self._from, self._to):
            os.set_blocking(end, False)
        self.stdin: IO[bytes] | None = os.fdopen(to_us, "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(from_us, "rb", buffering=0)
        self.stderr: IO[bytes] | None = os.fdopen(errors, "rb", buffering=0)

    # For whoever talks to the agent.

    def kill(self) -> None:
        """The agent is killed, and its ranks with it; nothing that it says is heard any more."""
        self._owner.call(self._kill)

    def wait(self, timeout: float | None = None) -> int:
        """The status of the agent, or ours. Raises ``subprocess.TimeoutExpired``."""
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired("the link to a task", timeout or 0.0)
        return self._status

    # On the owner's thread.

    def watch(self) -> None:
        self._owner.selector.register(self._from, selectors.EVENT_READ, self._send)

    def take(self, data: bytes) -> None:
        """The agent has said this."""
        if not self._ending:
            self._pending += data
            self._flush()

    def end(self, status: int) -> None:
        """Nothing more will come."""
        if not self._ending:
            self._ending = True
            self._status = status
            self._flush()

    def _kill(self) -> None:
        if not self._ending:
            self._owner.say(self.task, {"kill": True})
            self._pending.clear()
            self.end(_KILLED)

    def _send(self) -> None:
        try:
            data = os.read(self._from, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._owner.selector.unregister(self._from)
            if not self._ending:
                self._owner.say(self.task, {"eof": True})
            return
        if not self._ending:
            self._owner.say(self.task, {"data": text_of(data)})

    def _flush(self) -> None:
        if self._over.is_set():
            return
        try:
            while self._pending:
                del self._pending[: os.write(self._to, self._pending)]
        except BlockingIOError:
            if not self._watched:
                self._watched = True
                self._owner.selector.register(self._to, selectors.EVENT_WRITE, self._flush)
            return
        except OSError:  # nobody reads any more
            self._pending.clear()
        if self._watched:
            self._watched = False
            self._owner.selector.unregister(self._to)
        if self._ending:
            self._close()

    def _close(self) -> None:
        if self._from in self._owner.selector.get_map():
            self._owner.selector.unregister(self._from)
        for end in (self._from, self._to):
            os.close(end)
        self._over.set()
