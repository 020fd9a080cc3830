"""The store: a small key-value server where ranks leave their addresses and wait for those of the others.

It runs in the launcher, or in rank 0; one thread serves all connections, and waiting requests cost nothing.
Every connection first passes the handshake (``bootstrap/trust/handshake.py``), during which a stranger can
hold no more than 116 bytes, 10 seconds and one of a limited number of places; who comes when all are taken
gets that of the stranger who has been there longest, as its first message takes no longer than milliseconds.
Who has said that message knows the key, and keeps no stranger out: thousands of ranks may come at once. So
many come in one turn, and then everything else is served. After the handshake every message is signed with
keys that follow from it (``bootstrap/trust/session.py``). What requests mean is in ``table.py``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import queue
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from horovod.bootstrap.network.listening import listen, listen_at
from horovod.bootstrap.store.connection import RECEIVE_BYTES, StoreConnection
from horovod.bootstrap.store.messages import ALTERED, MAX_FRAME_BYTES, AlteredError, FrameError
from horovod.bootstrap.store.table import Cause, Table
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.admission import MOST_AT_ONCE, Refusals
from horovod.bootstrap.trust.conversation import keep_alive, tune
from horovod.bootstrap.trust.handshake import store_purpose
from horovod.bootstrap.trust.unix import other_user, whence
from horovod.errors import AuthenticationError

__all__ = ["StoreServer"]

_log = logging.getLogger("horovod.bootstrap")

_MOST_UNREAD_BYTES = 2 * MAX_FRAME_BYTES  # answers that a client leaves lying
_NO_DESCRIPTOR_PAUSE_S = 0.1
_FEWEST_STRANGERS = 256
_MOST_STRANGERS = 1 << 14


class StoreServer:
    """Serves one job's store until ``stop``; a context manager.

    Args:
        key: the job's key, at least 16 bytes; or a function of the port that returns it.
        bind_host: addresses of the interfaces on which the workers come; the loopback interface by default.
            Or the name of a Unix socket (``unix.fresh_name``), where only this user is let in.
        port: the same on all; 0 = any free one; ``address`` tells.
        reserved: those of ``bind_host`` where nobody can connect before ``widen``.
        job: its name, as its clients have it; one key may be that of several jobs.
        handshake_timeout_s: how long a connection may take to prove the key.
        max_strangers: how many connections may be open that have not said a right hello; one more, and the
            oldest ends. By default a quarter of the descriptors that this process may have, 256 at least:
            who serves thousands of ranks has made room for them, and all may come at once.
    """

    def __init__(
        self,
        key: bytes | Callable[[int], bytes],
        bind_host: str | Sequence[str] = "127.0.0.1",
        port: int = 0,
        *,
        reserved: Collection[str] = (),
        job: str = "",
        handshake_timeout_s: float = 10.0,
        max_strangers: int | None = None,
    ) -> None:
        self.job = job
        self._purpose = store_purpose(job)
        self._handshake_timeout_s = handshake_timeout_s
        self._max_strangers = max_strangers
        self._table = Table()
        self._connections: dict[int, StoreConnection] = {}
        self._strangers: dict[int, StoreConnection] = {}  # in the order of their deadlines
        self._silent: dict[int, StoreConnection] = {}  # those that have not proved the key by a hello
        self._heard: set[bytes] = set()
        self._ways: dict[bool, set[socket.socket]] = {False: set(), True: set()}
        """Over which listeners clients that asked for something came, of this host and of others."""
        self._refusals = Refusals("The store of this job")
        self._next_number = 0
        self._listening = False
        self._listen_at = 0.0
        self._drain_until = 0.0
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[Callable[[Table], None]] = queue.SimpleQueue()
        hosts = [bind_host] if isinstance(bind_host, str) else bind_host
        bound = listen_at(hosts, port, reserved)
        self._addresses = tuple(map(_address_of, bound))
        self._listeners = [each for host, each in zip(hosts, bound, strict=True) if host not in reserved]
        self._reserved = [each for each in bound if each not in self._listeners]
        try:
            self._key = key(self.address[1]) if callable(key) else key
        except BaseException:
            for listener in bound:
                listener.close()
            raise
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to; the first, if there are several. Of a Unix socket its name."""
        return self._addresses[0]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """All of them, in the order of ``bind_host``."""
        return self._addresses

    def start(self) -> None:
        """Begin to serve, on a thread of its own."""
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._listen()
        self._thread = threading.Thread(target=self._serve, name="farandole-store", daemon=True)
        self._thread.start()

    def stop(self, drain_s: float = 0.0) -> None:
        """Close every connection and end the thread. Idempotent.

        Args:
            drain_s: serve on for so long at most, while somebody is in the middle of a conversation. Who
                waits for what is not there would wait in vain: that does not count.
        """
        if self._thread is not None:
            self._drain_until = time.monotonic() + drain_s
            self._stop_writer.send(b"x")
            self._thread.join()
            self._thread = None
            self._refusals.tell()
        for connection in list(self._connections.values()):
            connection.socket.close()
        self._connections.clear()
        self._selector.close()
        for end in (*self._listeners, *self._reserved, self._stop_reader, self._stop_writer):
            end.close()

    def fail(self, prefix: str, cause: Cause) -> None:
        """Tell ``cause`` to everybody who waits for a key below ``prefix``, now or later. From any thread."""
        self._order(lambda table: table.fail(prefix, cause))

    def put(self, key: str, value: Any) -> None:
        """Store ``value`` (anything that JSON can say), as a client's ``set``. From any thread."""
        self._order(lambda table: table.put(key, value))

    def forget(self, prefix: str) -> None:
        """Forget every key and every abort that begins with ``prefix``. From any thread."""
        self._order(lambda table: table.forget(prefix))

    def observe(self, prefix: str, heard: Callable[[str, Any], None]) -> None:
        """From now on ``heard(rest of the key, value)`` is called for each value that a client sets, or
        adds to, below ``prefix``; on the thread that serves, so it must not wait. From any thread.
        """
        self._order(lambda table: table.observe(prefix, heard))

    def _order(self, order: Callable[[Table], None]) -> None:
        self._orders.put(order)
        self._stop_writer.send(b"f")

    def widen(self) -> None:
        """Others may come: listen also at the addresses that were reserved. From any thread. Idempotent."""
        self._order(lambda _: self._widen())

    def narrow(self) -> None:
        """All who belong to the job have come: listen no longer where nobody of another host did. From any
        thread.
        """
        self._order(lambda _: self._narrow())

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent, without touching it."""
        for connection in self._connections.values():
            connection.socket.close()
        self._selector.close()
        for end in (*self._listeners, *self._reserved, self._stop_reader, self._stop_writer):
            end.close()

    def __enter__(self) -> StoreServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self) -> None:
        stopping = False
        while not (stopping and self._drained()):
            self._deliver()
            wait_s = self._seconds_to_wait()
            if stopping:
                left_s = max(0.0, self._drain_until - time.monotonic())
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            ready = self._selector.select(wait_s)
            # First: who asks after an order was given finds it carried out.
            while not self._orders.empty():
                self._obey(self._orders.get_nowait())
            for key, events in ready:
                if key.fileobj is self._stop_reader:
                    if b"x" in self._stop_reader.recv(RECEIVE_BYTES):
                        stopping = True
                        self._selector.unregister(self._stop_reader)
                    continue
                if key.data is None:
                    if key.fileobj in self._listeners:  # an order may have closed it
                        self._accept_some(key.fileobj)
                    continue
                connection: StoreConnection = key.data
                if connection.number in self._connections:  # may have been closed earlier in this round
                    self._advance(connection, events)

    def _obey(self, order: Callable[[Table], None]) -> None:
        try:
            order(self._table)
        except Exception as error:  # a full table, or a bug: it must not cost everybody the store
            _log.error("The store cannot do what this process wants of it: %s", error)

    def _drained(self) -> bool:
        """Nobody will get another answer: all have left, or wait for what will not come."""
        if time.monotonic() >= self._drain_until:
            return True
        return not any(
            connection.outgoing or not self._table.waits(connection.number)
            for connection in self._connections.values()
            if not connection.stranger
        )

    def _seconds_to_wait(self) -> float | None:
        """Until the next deadline; expires what is due. The common case, no stranger, looks at no
        connection.
        """
        wait_s = self._table.expire()
        self._deliver()
        if not self._strangers and self._listening:
            return wait_s
        now = time.monotonic()
        due = []
        if not self._listening:
            if now >= self._listen_at:
                self._listen()
            else:
                due.append(self._listen_at)
        while self._strangers:
            oldest = next(iter(self._strangers.values()))
            if oldest.deadline > now:
                due.append(oldest.deadline)
                break
            self._refuse(oldest, "it did not finish the handshake in time")
        left_s = min(due, default=math.inf) - now
        return min(wait_s if wait_s is not None else math.inf, left_s) if due else wait_s

    def _listen(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._listening = True

    def _note_way(self, connection: StoreConnection) -> None:
        """Note the listener of a connection at its first request: a client that tried several ways may prove
        the key on each, and uses one.
        """
        if not connection.asked:
            connection.asked = True
            with contextlib.suppress(OSError):  # it is gone already
                self._ways[connection.from_afar].add(connection.listener)

    def _widen(self) -> None:
        while self._reserved:
            listener = self._reserved.pop()
            listen(listener)
            self._listeners.append(listener)
            if self._listening:
                self._selector.register(listener, selectors.EVENT_READ)

    def _narrow(self) -> None:
        ways = self._ways[True] or self._ways[False]
        for listener in [each for each in self._listeners if ways and each not in ways]:
            if self._listening:
                self._selector.unregister(listener)
            listener.close()
            self._listeners.remove(listener)

    def _accept_some(self, listener: socket.socket) -> None:
        for _ in range(MOST_AT_ONCE):
            if not self._accept(listener):
                return

    def _accept(self, listener: socket.socket) -> bool:
        """Take the next one in; whether there may be another."""
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            _log.debug("the store could not accept a connection: %s", error)
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._wait_for_a_descriptor(error)
                return False
            return True  # the peer is gone again
        if other_user(accepted) is not None:
            self._refusals.add(whence(accepted), "another user")
            accepted.close()
            return True
        accepted.setblocking(False)
        tune(accepted)
        keep_alive(accepted)
        while self._crowded():
            self._refuse(self._least_likely(), "others came")
        self._next_number += 1
        deadline = time.monotonic() + self._handshake_timeout_s
        connection = StoreConnection(
            self._next_number, accepted, listener, self._key, self._purpose, deadline, self._heard
        )
        self._connections[connection.number] = connection
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._strangers[connection.number] = self._silent[connection.number] = connection
        self._advance(connection, selectors.EVENT_READ)  # its hello may be there: then nobody pushes it out
        return True

    def _crowded(self) -> bool:
        """Return whether a stranger has to go before another one comes. Of the descriptors that this process
        may have, those without a hello get a quarter, and all strangers half: a hello may be one that
        somebody has recorded.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _MOST_STRANGERS if limit == resource.RLIM_INFINITY else min(limit // 4, _MOST_STRANGERS)
        most = max(_FEWEST_STRANGERS, most)
        silent = most if self._max_strangers is None else self._max_strangers
        return len(self._silent) >= silent or len(self._strangers) >= 2 * most

    def _least_likely(self) -> StoreConnection:
        """The oldest of those that have not proved the key by their first message, else of all."""
        return next(iter((self._silent or self._strangers).values()))

    def _refuse(self, connection: StoreConnection, reason: str) -> None:
        self._refusals.add(whence(connection.socket), reason)
        self._close(connection, reason)

    def _wait_for_a_descriptor(self, error: OSError) -> None:
        """Refuse a stranger, or pause accepting: the backlog would wake this thread again and again."""
        if self._strangers:
            self._refuse(self._least_likely(), str(error))
            return
        if not self._listening:
            return
        for listener in self._listeners:
            self._selector.unregister(listener)
        self._listening = False
        self._listen_at = time.monotonic() + _NO_DESCRIPTOR_PAUSE_S

    def _advance(self, connection: StoreConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                was_stranger = connection.stranger
                for message in connection.receive():
                    self._table.request(connection.number, message)
                    self._note_way(connection)
                    self._deliver()  # one at a time: the answers to a short request may be long
                    if connection.number not in self._connections:
                        return
                if connection.greeted:
                    self._silent.pop(connection.number, None)
                if was_stranger and not connection.stranger:
                    del self._strangers[connection.number]
                self._flush(connection)
        except AlteredError:
            _log.warning("The store drops the connection from %s: %s", whence(connection.socket), ALTERED)
            self._close(connection, ALTERED)
        except AuthenticationError as error:
            self._refuse(connection, str(error))
        except (OSError, FrameError) as error:
            self._close(connection, str(error))
        except Exception as error:  # a bug: it must not cost the others their store
            _log.warning("The store failed to serve one client and drops it: %r", error)
            self._close(connection, repr(error))

    def _deliver(self) -> None:
        while self._table.replies:  # closing a connection may add some
            replies, self._table.replies = self._table.replies, []
            for number, frame in replies:
                connection = self._connections.get(number)
                if connection is None:
                    continue
                connection.say(*frame)
                try:
                    self._flush(connection)
                    if len(connection.outgoing) > _MOST_UNREAD_BYTES:
                        raise OSError(f"{len(connection.outgoing)} bytes of answers were not read")
                except OSError as error:
                    self._close(connection, str(error))

    def _flush(self, connection: StoreConnection) -> None:
        connection.send()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if wanted != connection.events:
            connection.events = wanted
            self._selector.modify(connection.socket, wanted, connection)

    def _close(self, connection: StoreConnection, reason: str) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        _log.debug("the store closes a connection: %s", reason)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._strangers.pop(connection.number, None)
        self._silent.pop(connection.number, None)
        self._table.leave(connection.number)


def _address_of(listener: socket.socket) -> tuple[str, int]:
    if listener.family == socket.AF_UNIX:
        return unix.name_of(listener), unix.NO_PORT
    name = listener.getsockname()
    return name[0], name[1]
