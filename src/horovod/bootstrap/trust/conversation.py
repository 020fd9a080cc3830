"""Runs many short conversations on non-blocking sockets at the same time, in one thread, without polling.

A conversation is a generator that yields what it waits for: ``(socket, event)``, or a number of seconds, such
as ``PAUSE`` where the system has no event to wait for. It owns its socket until it returns it. A conversation
that fails or is given up closes its socket.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import selectors
import socket
import time
from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias, TypeVar

from horovod.bootstrap.trust.handshake import REPLY_BYTES, Dialer, Purpose
from horovod.bootstrap.trust.session import Session
from horovod.bootstrap.trust.unix import other_user
from horovod.errors import AuthenticationError

__all__ = [
    "NOW",
    "PAUSE",
    "Address",
    "Conversation",
    "Conversations",
    "TurnedAway",
    "connect_to",
    "dial",
    "greet",
    "keep_alive",
    "receive",
    "send",
    "tune",
]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T")
Wait: TypeAlias = "tuple[HasFileno, int] | float"
Conversation: TypeAlias = Generator[Wait, None, T]
Address: TypeAlias = "tuple[str, int] | str"
"""Host (a number, not a name) and port of a TCP socket, or the name of a Unix socket."""

PAUSE: Wait = 0.005
NOW: Wait = 0.0
"""Not to wait, but to let all others have their turn."""

_FEW_TIMERS = 64


class TurnedAway(AuthenticationError):
    """The other side closed the connection in place of an answer. That is all a wrong key is told; it is also
    what who comes in a crowd of strangers may see, and may try again.
    """


class Conversations:
    """Runs conversations until a condition holds; a context manager that gives up those that are left."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._waiting: dict[Conversation[None], HasFileno | None] = {}
        self._resumed: HasFileno | None = None
        self._timers: list[tuple[float, int, Conversation[None], bool]] = []
        self._number = itertools.count()  # of equal times the earlier call comes first

    def __enter__(self) -> Conversations:
        return self

    def __exit__(self, *_: object) -> None:
        for conversation in list(self._waiting):
            conversation.close()
        self._selector.close()

    def start(self, conversation: Conversation[None], limit_s: float | None = None) -> None:
        """Begin. What it raises leaves ``run``. After ``limit_s`` it gets a TimeoutError."""
        self._waiting[conversation] = None
        if limit_s is not None:
            self._wake(conversation, limit_s, late=True)
        self._resume(conversation, None)

    def stop(self, conversation: Conversation[None]) -> None:
        """Give it up, as it is. Does nothing if it has ended."""
        if conversation in self._waiting:
            waited_on = self._waiting.pop(conversation)
            if waited_on is not None:
                self._selector.unregister(waited_on)
            conversation.close()

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Go on until ``until()``. Returns False if ``deadline`` (monotonic clock) comes first."""
        while not until():
            now = time.monotonic()
            if now >= deadline:
                return False
            while self._timers and self._timers[0][0] <= now:
                _, _, conversation, late = heapq.heappop(self._timers)
                if conversation not in self._waiting:
                    continue
                if late:
                    self._resume(conversation, TimeoutError("the handshake took too long"))
                elif self._waiting[conversation] is None:
                    self._resume(conversation, None)
            if until():
                return True
            wait_s = min(deadline, self._timers[0][0] if self._timers else deadline) - time.monotonic()
            for key, _ in self._selector.select(max(0.0, wait_s)):
                if key.data in self._waiting:  # may have been ended by another one of this turn
                    self._resume(key.data, None)
        return True

    def descriptors(self) -> list[int]:
        """Of all sockets that are waited for, or were until now, and of what waits for them."""
        sockets = [one for one in (self._resumed, *self._waiting.values()) if one is not None]
        return [self._selector.fileno(), *(number for each in sockets if (number := each.fileno()) >= 0)]

    def _wake(self, conversation: Conversation[None], after_s: float, *, late: bool) -> None:
        if len(self._timers) > 2 * len(self._waiting) + _FEW_TIMERS:
            # Most are limits of conversations that have ended, such as those with strangers.
            self._timers = [timer for timer in self._timers if timer[2] in self._waiting]
            heapq.heapify(self._timers)
        entry = (time.monotonic() + after_s, next(self._number), conversation, late)
        heapq.heappush(self._timers, entry)

    def _resume(self, conversation: Conversation[None], error: Exception | None) -> None:
        self._resumed = waited_on = self._waiting[conversation]
        if waited_on is not None:
            self._selector.unregister(waited_on)
            self._waiting[conversation] = None
        with contextlib.ExitStack() as ended:
            ended.callback(self._waiting.pop, conversation)
            try:
                wait = next(conversation) if error is None else conversation.throw(error)
            except StopIteration:
                return
            ended.pop_all()
        if isinstance(wait, tuple):
            self._selector.register(wait[0], wait[1], conversation)
            self._waiting[conversation] = wait[0]
        else:
            self._wake(conversation, wait, late=False)


def connect_to(family: int, address: Address) -> Conversation[socket.socket]:
    """A connection to ``address`` on which nothing has been said.

    Raises:
        OSError: it cannot be reached.
        AuthenticationError: it is a Unix socket at which another user listens.
    """
    connection = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.ExitStack() as doomed:
        doomed.callback(connection.close)
        connection.setblocking(False)
        while code := connection.connect_ex(address):
            if code == errno.EINPROGRESS:
                yield connection, selectors.EVENT_WRITE
                if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(code, os.strerror(code))
                break
            if code != errno.EAGAIN:  # EAGAIN: the backlog of a Unix socket is full for now
                raise OSError(code, os.strerror(code))
            yield PAUSE
        if (user := other_user(connection)) is not None:
            raise AuthenticationError(f"user {user} listens there, and this process is another one's")
        tune(connection)
        doomed.pop_all()
    return connection


def dial(
    family: int, address: Address, key: bytes, purpose: Purpose
) -> Conversation[tuple[socket.socket, Session]]:
    """Connect to ``address`` and prove the key, both ways. Returns the connection and its keys.

    Raises:
        OSError: the other side cannot be reached or closed the connection.
        AuthenticationError: it does not know the key.
    """
    connection = yield from connect_to(family, address)
    with contextlib.ExitStack() as doomed:
        doomed.callback(connection.close)
        dialer = Dialer(key, purpose)
        proof = yield from greet(connection, dialer)
        yield from send(connection, proof)
        doomed.pop_all()
    return connection, dialer.session()


def greet(connection: socket.socket, dialer: Dialer) -> Conversation[bytes]:
    """Say hello and check the reply. Returns our proof, still to be sent.

    Raises:
        OSError: the connection broke.
        TurnedAway: the other side closed it without an answer.
        AuthenticationError: it does not know the key.
    """
    try:
        yield from send(connection, dialer.hello)
        reply = yield from receive(connection, REPLY_BYTES)
    except ConnectionError as error:
        raise TurnedAway(
            "it closed the connection without an answer: it has another key, or is about to end"
        ) from error
    return dialer.answer(reply)


def send(connection: socket.socket, data: bytes) -> Conversation[None]:
    """Send all of ``data``."""
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            yield connection, selectors.EVENT_WRITE


def receive(connection: socket.socket, size: int) -> Conversation[bytes]:
    """Read exactly ``size`` bytes, and not one of what follows them."""
    received = b""
    while len(received) < size:
        try:
            data = connection.recv(size - len(received))
        except BlockingIOError:
            yield connection, selectors.EVENT_READ
            continue
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the other side closed the connection")
        received += data
    return received


_KEEP_S = 20
_KEEP_TIMES = 90


def keep_alive(connection: socket.socket) -> None:
    """Say something now and then on a connection on which nothing is said for long. Firewalls and gateways
    forget a connection that is silent for some minutes, and drop what is said at last, without a word. And a
    machine that has lost its power does not know of it any more: then this ends it here, too.
    """
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEP_TIMES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def tune(connection: socket.socket) -> None:
    """Prepare a fresh connection. Small frames go out at once. Buffers stay with the kernel, which sizes them
    better than a fixed number.
    """
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
