"""The connection to the launcher."""

from __future__ import annotations

import json
import os
import select
import time

from horovod.launch.agent.requests import Intake, memory_bytes
from horovod.launch.agent.terms import BEAT_S, PLAN_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.launch.agent.requests import Request

_OF_RANKS = (
    "started", "refused", "few_devices", "said", "stopped", "continued", "exited", "left_behind", "gone",
)  # fmt: skip


class Launcher:
    """The two pipes to the launcher. To another host nothing here waits: a connection may stall."""

    def __init__(self, remote: bool) -> None:
        self.gone = False
        self.ended = False  # the connection has
        self._again = False  # it was silent for too long, and is heard again
        self.silence_s = PLAN_S if remote else 0.0  # 0: it is not expected to beat
        self.heard_at = time.monotonic()
        self._beat_at = self.heard_at
        self._intake = Intake(remote, memory_bytes())
        self._pending = bytearray()
        self._story: list[bytes] | None = None
        if remote:
            for descriptor in (0, 1):  # may be one socket
                os.set_blocking(descriptor, False)

    def read(self) -> None:
        """Take in what is there."""
        try:
            data = os.read(0, 1 << 20)
        except BlockingIOError:
            return
        except OSError:  # a socket that was closed with bytes unread
            data = b""
        self._intake.feed(data)
        self.heard_at = time.monotonic()
        self._again = self.gone and bool(data)
        self.ended = not data
        self.gone = self.gone or self.ended

    def requests(self) -> list[Request]:
        """Requests of the launcher. After a refusal no more are read. Raises `Refusal`."""
        return self._intake.requests()

    @property
    def call(self) -> int:
        """Memory that all ranks of this host read; -1: there is none."""
        return self._intake.call

    def remember(self) -> None:
        """From now on keep what is said about ranks, for another launcher."""
        self._story = []

    def change(self, connection: int, say_untaken: Callable[[], None]) -> None:
        """Another launcher is there, at the other end of this socket. It hears what has been said so far.
        `say_untaken`: first, what ranks have printed and the one before may not have shown. After the news
        that a rank is gone nobody would expect it.
        """
        for descriptor in (0, 1):
            os.dup2(connection, descriptor, inheritable=False)
        os.set_blocking(0, False)  # the same socket as 1
        self._intake.begin_again()
        self._pending.clear()
        self._recount(say_untaken)

    def come_back(self) -> bool:
        """Repeat what has been said so far to a launcher that stood still and is heard again. Returns whether
        there is one.
        """
        if self._story is None or self.ended or not self._again:
            return False
        self._recount(lambda: None)  # what it has not taken is still on its way
        return True

    def _recount(self, say_untaken: Callable[[], None]) -> None:
        self.gone = self.ended = self._again = False
        self.heard_at = time.monotonic()
        self.say("attached")
        say_untaken()
        self.send(b"".join(self._story or []))
        self.say("caught_up")

    def rest(self) -> bytes:
        """Remove and return the bytes that the launcher has sent after its last request."""
        return self._intake.rest()

    def put_back(self, rest: bytes) -> None:
        """Take these bytes in again: they were meant for this agent."""
        self._intake.feed(rest)

    def say(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        if self._story is not None and event in _OF_RANKS:
            self._story.append(line)
        self.send(line)

    def send(self, data: bytes) -> None:
        if not self.gone:
            self._pending += data
            self.flush()

    def flush(self) -> bool:
        """Write what fits; whether nothing is left."""
        try:
            while self._pending:
                del self._pending[: os.write(1, self._pending)]
        except BlockingIOError:
            return False
        except OSError:  # it is gone; its end of standard input says so too
            self._pending.clear()
        return True

    def look(self) -> None:
        """Send the beat that is due, and notice silence."""
        if not self.silence_s:
            return
        now = time.monotonic()
        if now >= self.heard_at + self.silence_s:
            self.gone = True
            if self._story is None:  # else it may come back, in the middle of a line
                self._pending.clear()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            if not self._pending:
                self.say("beat")

    def due_s(self) -> float:
        """When `look` has something to do."""
        if not self.silence_s or self.gone:
            return float("inf")
        return min(self._beat_at, self.heard_at + self.silence_s)

    def close(self) -> None:
        """Wait until everything is written, as long as the launcher reads."""
        poller = select.poll()
        poller.register(1, select.POLLOUT)
        while not self.gone and not self.flush():
            poller.poll(int(BEAT_S * 1000))
            self.read()
            self.look()
