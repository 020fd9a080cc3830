"""Many short conversations on non-blocking sockets at once, in one thread, without polling.

A conversation is a generator that yields what it waits for, ``(socket, event)``, or ``PAUSE`` where the
system offers nothing to wait for. It owns its socket until it returns it: a conversation that fails or is
given up closes it.
"""

from __future__ import annotations

import collections
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias, TypeVar

from horovod.bootstrap.handshake import HELLO_BYTES, PROOF_BYTES, REPLY_BYTES, Acceptor, Dialer, Purpose

__all__ = ["PAUSE", "Address", "Conversation", "Conversations", "accept", "dial", "wait_readable"]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T")
Wait: TypeAlias = "tuple[HasFileno, int] | None"
Conversation: TypeAlias = Generator[Wait, None, T]
Address: TypeAlias = "tuple[str, int] | str"
"""Host (a number, not a name) and port of a TCP socket, or the name of a Unix socket."""

PAUSE: Wait = None
_PAUSE_S = 0.005


class Conversations:
    """Runs conversations until a condition holds; a context manager that gives up those that are left."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[Conversation[None], HasFileno | None] = {}
        self._limits: collections.deque[tuple[float, Conversation[None]]] = collections.deque()

    def __enter__(self) -> Conversations:
        return self

    def __exit__(self, *_: object) -> None:
        for conversation in list(self._waiting):
            conversation.close()
        self._selector.close()

    def start(self, conversation: Conversation[None], limit_s: float | None = None) -> None:
        """Begin. What it raises leaves ``run``. After ``limit_s`` (one and the same for all) it gets a
        TimeoutError.
        """
        if limit_s is not None:
            self._limits.append((time.monotonic() + limit_s, conversation))
        self._waiting[conversation] = None
        self._resume(conversation, None)

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Go on until ``until()``. Returns False if ``deadline`` (monotonic clock) comes first."""
        while not until():
            now = time.monotonic()
            if now >= deadline:
                return False
            while self._limits and self._limits[0][0] <= now:
                late = self._limits.popleft()[1]
                if late in self._waiting:
                    self._resume(late, TimeoutError("the handshake took too long"))
            paused = [conversation for conversation, on in self._waiting.items() if on is None]
            wait_s = min(deadline, self._limits[0][0] if self._limits else deadline) - now
            for key, _ in self._selector.select(max(0.0, min(wait_s, _PAUSE_S) if paused else wait_s)):
                self._resume(key.data, None)
            for conversation in paused:
                if conversation in self._waiting:
                    self._resume(conversation, None)
        return True

    def _resume(self, conversation: Conversation[None], error: Exception | None) -> None:
        waited_on = self._waiting[conversation]
        if waited_on is not None:
            self._selector.unregister(waited_on)
            self._waiting[conversation] = None
        try:
            wait = next(conversation) if error is None else conversation.throw(error)
        except BaseException as end:
            del self._waiting[conversation]
            if not isinstance(end, StopIteration):
                raise
            return
        if wait is not None:
            self._selector.register(wait[0], wait[1], conversation)
            self._waiting[conversation] = wait[0]


def dial(family: int, address: Address, key: bytes, purpose: Purpose) -> Conversation[socket.socket]:
    """Connect to ``address`` and prove the key, both ways.

    Raises:
        OSError: the other side cannot be reached or closed the connection.
        AuthenticationError: it does not know the key.
    """
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
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
        _tune(connection)
        dialer = Dialer(key, purpose)
        yield from send(connection, dialer.hello)
        proof = dialer.answer((yield from receive(connection, REPLY_BYTES)))
        yield from send(connection, proof)
        return connection
    except BaseException:
        connection.close()
        raise


def accept(
    connection: socket.socket, key: bytes, expects: Callable[[Purpose], bool]
) -> Conversation[tuple[socket.socket, Purpose]]:
    """The other side of ``dial``: takes ``connection`` over and returns it with its proven purpose.

    Raises:
        OSError: the other side closed the connection.
        AuthenticationError: it does not know the key, or wants what nobody ``expects``.
    """
    try:
        connection.setblocking(False)
        _tune(connection)
        acceptor = Acceptor(key, expects)
        yield from send(connection, acceptor.reply((yield from receive(connection, HELLO_BYTES))))
        return connection, acceptor.verify((yield from receive(connection, PROOF_BYTES)))
    except BaseException:
        connection.close()
        raise


def wait_readable(source: HasFileno) -> Conversation[None]:
    """Wait until there is something to read."""
    yield source, selectors.EVENT_READ


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


def _tune(connection: socket.socket) -> None:
    """Small frames go out at once. Buffers stay with the kernel, which sizes them better than a fixed
    number.
    """
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
