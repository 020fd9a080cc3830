"""The store: a small key-value server where ranks leave their addresses and wait for those of the others.

The server runs in the launcher, or in rank 0; one thread serves all connections, and waiting requests cost
nothing. Every connection first passes the handshake (``handshake.py``), during which a stranger can hold no
more than 116 bytes, 10 seconds and one of a limited number of places; who comes when all are taken gets that
of the stranger who has been there longest, as a handshake takes no longer than milliseconds. So many come in
one turn, and then everything else is served. After the handshake every message is signed with keys that
follow from it (``session.py``). What requests mean is in ``table.py``.
"""

from __future__ import annotations

import errno
import logging
import math
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from horovod.bootstrap import unix
from horovod.bootstrap.admission import MOST_AT_ONCE
from horovod.bootstrap.conversation import tune
from horovod.bootstrap.handshake import store_purpose
from horovod.bootstrap.messages import MAX_FRAME_BYTES, AlteredError, FrameError, FrameReader, encode
from horovod.bootstrap.network import listen_at
from horovod.bootstrap.refusals import Refusals
from horovod.bootstrap.store_connection import RECEIVE_BYTES, StoreConnection
from horovod.bootstrap.table import Cause, Table
from horovod.bootstrap.unix import other_user, whence
from horovod.errors import AuthenticationError, HorovodInternalError, RendezvousError, StoreTimeout

__all__ = ["StoreClient", "StoreServer"]

_log = logging.getLogger("horovod.bootstrap")

_MOST_UNREAD_BYTES = 2 * MAX_FRAME_BYTES  # answers that a client leaves lying
_NO_DESCRIPTOR_PAUSE_S = 0.1
_ALTERED = (
    "what came over that connection is not what the other side sent. Somebody between the two hosts changed, "
    "repeated or left out a part of it; nothing of it was used."
)
_NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What looking for the parts of a message raises that is of another shape."""

_ANSWER_GRACE_S = 5.0  # the server answers time-outs itself; this is for a server that answers nothing at all


class StoreServer:
    """Serves one job's store until ``stop``; a context manager.

    Args:
        key: the job's key, at least 16 bytes; or a function of the port that returns it.
        bind_host: addresses of the interfaces on which the workers come; the loopback interface by default.
            Or the name of a Unix socket (``unix.fresh_name``), where only this user is let in.
        port: the same on all; 0 = any free one; ``address`` tells.
        job: its name, as its clients have it; one key may be that of several jobs.
        handshake_timeout_s: how long a connection may take to prove the key.
        max_strangers: how many connections may be in their handshake at once; one more, and the oldest ends.
    """

    def __init__(
        self,
        key: bytes | Callable[[int], bytes],
        bind_host: str | Sequence[str] = "127.0.0.1",
        port: int = 0,
        *,
        job: str = "",
        handshake_timeout_s: float = 10.0,
        max_strangers: int = 256,
    ) -> None:
        self.job = job
        self._purpose = store_purpose(job)
        self._handshake_timeout_s = handshake_timeout_s
        self._max_strangers = max_strangers
        self._table = Table()
        self._connections: dict[int, StoreConnection] = {}
        self._strangers: dict[int, StoreConnection] = {}  # in the order of their deadlines
        self._heard: set[bytes] = set()
        self._ways: dict[bool, set[socket.socket]] = {False: set(), True: set()}
        """Over which listeners clients came, of this host and of others."""
        self._refusals = Refusals("The store of this job")
        self._next_number = 0
        self._listening = False
        self._listen_at = 0.0
        self._drain_until = 0.0
        self._thread: threading.Thread | None = None
        self._failures: queue.SimpleQueue[tuple[str, Cause]] = queue.SimpleQueue()
        self._listeners = listen_at([bind_host] if isinstance(bind_host, str) else bind_host, port)
        self._addresses = tuple(map(_address_of, self._listeners))
        try:
            self._key = key(self.address[1]) if callable(key) else key
        except BaseException:
            for listener in self._listeners:
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
        self._thread = threading.Thread(target=self._serve, name="rueda-store", daemon=True)
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
        for end in (*self._listeners, self._stop_reader, self._stop_writer):
            end.close()

    def fail(self, prefix: str, cause: Cause) -> None:
        """Whoever waits for a key below ``prefix``, now or later, hears of ``cause``. From any thread."""
        self._failures.put((prefix, cause))
        self._stop_writer.send(b"f")

    def narrow(self) -> None:
        """All who belong to the job have come: listen no longer where nobody of another host did. From any
        thread.
        """
        self._stop_writer.send(b"n")

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent, without touching it."""
        for connection in self._connections.values():
            connection.socket.close()
        self._selector.close()
        for end in (*self._listeners, self._stop_reader, self._stop_writer):
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
            for key, events in self._selector.select(wait_s):
                if key.fileobj is self._stop_reader:
                    told = self._stop_reader.recv(RECEIVE_BYTES)
                    while not self._failures.empty():
                        self._table.fail(*self._failures.get_nowait())
                    if b"n" in told:
                        self._narrow()
                    if b"x" in told:
                        stopping = True
                        self._selector.unregister(self._stop_reader)
                    continue
                if key.data is None:
                    self._accept_some(cast(socket.socket, key.fileobj))
                    continue
                connection: StoreConnection = key.data
                if connection.number in self._connections:  # may have been closed earlier in this round
                    self._advance(connection, events)

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
        for connection in list(self._strangers.values()):
            if connection.deadline > now:
                due.append(connection.deadline)
                break
            self._refuse(connection, "it did not finish the handshake in time")
        left_s = min(due, default=math.inf) - now
        return min(wait_s if wait_s is not None else math.inf, left_s) if due else wait_s

    def _listen(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._listening = True

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
        while len(self._strangers) >= self._max_strangers:
            self._refuse(self._least_likely(), "others came")
        self._next_number += 1
        deadline = time.monotonic() + self._handshake_timeout_s
        connection = StoreConnection(
            self._next_number, accepted, listener, self._key, self._purpose, deadline, self._heard
        )
        self._connections[connection.number] = connection
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._strangers[connection.number] = connection
        self._advance(connection, selectors.EVENT_READ)  # its hello may be there: then nobody pushes it out
        return True

    def _least_likely(self) -> StoreConnection:
        """The oldest of those that have not proved the key by their first message, else of all."""
        strangers = self._strangers.values()
        return next((each for each in strangers if not each.greeted), next(iter(strangers)))

    def _refuse(self, connection: StoreConnection, reason: str) -> None:
        self._refusals.add(whence(connection.socket), reason)
        self._close(connection, reason)

    def _wait_for_a_descriptor(self, error: OSError) -> None:
        """Whoever waits in the backlog would wake us again and again."""
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
                    self._deliver()  # one at a time: the answers to a short request may be long
                    if connection.number not in self._connections:
                        return
                if was_stranger and not connection.stranger:
                    del self._strangers[connection.number]
                    self._ways[connection.from_afar].add(connection.listener)
                self._flush(connection)
        except AlteredError:
            _log.warning("The store drops the connection from %s: %s", whence(connection.socket), _ALTERED)
            self._close(connection, _ALTERED)
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
                connection.say(frame)
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
        self._table.leave(connection.number)


def _address_of(listener: socket.socket) -> tuple[str, int]:
    if listener.family == socket.AF_UNIX:
        return unix.name_of(listener), unix.NO_PORT
    name = listener.getsockname()
    return name[0], name[1]


class StoreClient:
    """One connection to the store, used by one thread; a context manager.

    Args:
        address: host and port of the server, or several: those that work are found by trying. Or the name of
            its Unix socket, at which nobody but this user is believed.
        key: the job's key.
        timeout_s: for connecting and the handshake; a server that is not there yet is tried again until then.
        identity: who this is, for messages: ``rank 3 on host b``.
        job: the name of the job, as the server has it.

    Raises:
        AuthenticationError: the two sides do not have the same key, job and user.
        RendezvousError: nobody answers at ``address``.
    """

    def __init__(
        self,
        address: tuple[str, int] | Sequence[tuple[str, int]],
        key: bytes,
        timeout_s: float,
        identity: str,
        *,
        job: str = "",
    ) -> None:
        from horovod.bootstrap.reaching import reach_store  # who only serves needs no way to itself

        self.identity = identity
        self.aborted: dict[str, Cause] = {}
        self._next_id = 0
        self._silent = False
        self._arrived: list[dict[str, Any]] = []
        places = [cast("tuple[str, int]", address)] if isinstance(address[0], str) else address
        self._socket, route, session = reach_store(
            cast("Sequence[tuple[str, int]]", places), key, timeout_s, identity, job
        )
        self._reader = FrameReader(checker=session.checker())
        self._signer = session.signer()
        self._where = str(route)

    def local_host(self) -> str:
        """The address of this machine on the interface that reaches the store; "" for a Unix socket."""
        return "" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """The descriptor to wait on for events; see ``pump``."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection. Scopes that are still watched are aborted by this. Idempotent."""
        self._socket.close()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, key: str, value: Any) -> None:
        """Store ``value`` (anything that JSON can say) under ``key``."""
        self._call("set", key=key, value=value)

    def get(self, key: str, timeout_s: float) -> Any:
        """The value under ``key``, waiting for it. Raises ``StoreTimeout`` that names the key."""
        return self._call("get", wait_s=timeout_s, key=key, timeout_s=timeout_s)

    def compare_and_set(self, key: str, expected: Any, value: Any) -> tuple[bool, Any]:
        """Store ``value`` if the key holds ``expected`` (None = does not exist). Returns (stored?, value
        now).
        """
        swapped, current = self._call("compare_and_set", key=key, expected=expected, value=value)
        return bool(swapped), current

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter that begins at 0. Returns the new number."""
        return int(self._call("add", key=key, amount=amount))

    def collect(self, prefix: str, count: int, timeout_s: float) -> dict[str, Any]:
        """Everything below ``prefix`` in one reply, as soon as ``count`` keys are there.

        Returns:
            The values by the rest of their keys, in no order.

        Raises:
            StoreTimeout: fewer came in time. ``keys`` names the missing ones if they are numbered from 0.
        """
        answer: dict[str, Any] = self._call(
            "collect", wait_s=timeout_s, prefix=prefix, count=count, timeout_s=timeout_s
        )
        return answer

    def remove(self, prefix: str) -> None:
        """Forget every key that begins with ``prefix``."""
        self._call("remove", prefix=prefix)

    def watch(self, scope: str, rank: int = -1, host: str = "") -> None:
        """Hear of aborts below ``scope`` (they appear in ``aborted``), and abort it if this connection is
        lost: that of ``rank`` on ``host``, or -1: of no rank.
        """
        self._call("watch", scope=scope, who=self.identity, rank=rank, host=host)

    def unwatch(self, scope: str) -> None:
        """Undo ``watch``: what this process does no longer concerns the scope."""
        self._call("unwatch", scope=scope)

    def abort(self, scope: str, cause: Cause) -> None:
        """Make everybody fail who waits for a key below ``scope``, now or later. The first cause stays."""
        self._call("abort", scope=scope, cause=cause.to_json())

    def pump(self) -> None:
        """Take in events that have arrived, without waiting. Raises ``RendezvousError`` if the store is
        gone.
        """
        self._socket.setblocking(False)
        try:
            self._take(self._socket.recv(RECEIVE_BYTES))
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(error) from error

    def _call(self, op: str, *, wait_s: float = 0.0, **operands: Any) -> Any:
        if self._silent:
            raise self._no_answer()
        self._next_id += 1
        request_id = self._next_id
        deadline = time.monotonic() + wait_s + _ANSWER_GRACE_S
        try:
            self._socket.settimeout(_ANSWER_GRACE_S)
            self._socket.sendall(self._signer.signed(encode({"id": request_id, "op": op, **operands})))
            while True:
                for message in self._arrived:
                    if message.get("id") == request_id:
                        self._arrived.clear()
                        return self._understood(op, message, operands)
                self._arrived.clear()
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                self._take(self._socket.recv(RECEIVE_BYTES))
        except TimeoutError as error:
            self._silent = True  # whoever tries again need not wait again
            raise self._no_answer() from error
        except OSError as error:
            raise self._lost(error) from error

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("it closed the connection")
        try:
            for message in self._reader.feed(data):
                if message.get("event") == "aborted":
                    self.aborted.setdefault(message["scope"], Cause.from_json(message["cause"]))
                else:
                    self._arrived.append(message)
        except AlteredError as error:
            raise AuthenticationError(
                f"{self.identity} has lost the store at {self._where}: {_ALTERED}"
            ) from error
        except _NONSENSE as error:
            raise self._nonsense(error) from error

    def _understood(self, op: str, message: dict[str, Any], operands: dict[str, Any]) -> Any:
        """What the answer says, of the kind that ``op`` has."""
        try:
            result = self._result(message, operands)
            if op == "compare_and_set" and not (isinstance(result, list) and len(result) == 2):
                raise TypeError("not a pair")
            if op == "collect" and not isinstance(result, dict):
                raise TypeError("not a collection")
            if op == "add" and type(result) is not int:
                raise TypeError("not a number")
        except _NONSENSE as error:
            raise self._nonsense(error) from error
        return result

    def _nonsense(self, error: Exception) -> HorovodInternalError:
        return HorovodInternalError(f"The store at {self._where} sent nonsense: {error!r}")

    def _result(self, message: dict[str, Any], operands: dict[str, Any]) -> Any:
        error = message.get("error")
        if error is None:
            return message["ok"]
        if error == "aborted":
            cause = self.aborted.setdefault(message["scope"], Cause.from_json(message["cause"]))
            raise cause.error()
        if error == "full":
            raise RendezvousError(f"The store at {self._where} has no room: {message['text']}.")
        if "key" in operands:
            keys, what = [operands["key"]], repr(operands["key"])
        else:
            keys = _missing_keys(operands["prefix"], operands["count"], message["present"])
            present = len(message["present"])
            what = f"{operands['count'] - present} of {operands['count']} keys below {operands['prefix']!r}"
            what += f" ({', '.join(keys)})" if keys else ""
        raise StoreTimeout(
            f"The store at {self._where} did not get {what} within {message['waited_s']:g} s.",
            keys=keys,
            waited_s=message["waited_s"],
        )

    def _no_answer(self) -> RendezvousError:
        return RendezvousError(
            f"The store at {self._where} does not answer {self.identity}: the process that serves it is "
            "stopped, or one of the two hosts is cut off from the network."
        )

    def _lost(self, error: OSError) -> RendezvousError:
        return RendezvousError(
            f"{self.identity} lost the store at {self._where} ({error}): its server has ended, or closed the "
            "connection because the keys differ (HOROVOD_SECRET_KEY), or because what this process said was "
            "altered on the way. The output of the process that serves it says which."
        )


def _missing_keys(prefix: str, count: int, present: Sequence[str]) -> list[str]:
    """The keys that are not there, if the keys are numbered from 0; else nobody can know their names."""
    if not all(name.isdecimal() for name in present):
        return []
    return [f"{prefix}{number}" for number in range(count) if str(number) not in set(present)]
