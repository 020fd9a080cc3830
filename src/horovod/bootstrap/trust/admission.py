"""Admission: a rank's sockets accept each expected connection once, and nothing else.

Strangers cannot keep a rank busy: after ``MOST_AT_ONCE`` connections everything else has its turn, deadlines
included. On a Unix socket, a connection of another user is dropped before a byte is read. The first message
proves the key, so a stranger costs one read of a fixed size. Those that are turned away are counted, and
logged in a line now and then: never one for each of them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterable

from horovod.bootstrap.trust.conversation import (
    NOW,
    PAUSE,
    Conversation,
    Conversations,
    receive,
    send,
    tune,
)
from horovod.bootstrap.trust.handshake import HELLO_BYTES, PROOF_BYTES, Acceptor, Purpose
from horovod.bootstrap.trust.session import Session
from horovod.bootstrap.trust.unix import other_user, whence
from horovod.errors import AuthenticationError

__all__ = ["Admission", "HANDSHAKE_LIMIT_S", "MORE_STRANGERS", "MOST_AT_ONCE", "Refusals"]

_log = logging.getLogger("horovod.bootstrap")

_QUIET_S = 30.0
"""Between two lines."""


class Refusals:
    """Counts those that were turned away by ``who``, and says so at the first one, then every 30 s at most.

    Args:
        who: for the message, with a capital: ``Rank 3 on host b``.
        clock: seconds that only grow.
    """

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._who = who
        self._clock = clock
        self._told = 0
        self._last = ""
        self._quiet_until = 0.0

    def add(self, where: str, reason: str) -> None:
        """One more, from ``where``."""
        self.count += 1
        self._last = f"{where}: {reason}"
        if self._clock() >= self._quiet_until:
            self.tell()

    def tell(self) -> None:
        """Say how many came since the last line, if any did."""
        new = self.count - self._told
        if new == 0:
            return
        self._told = self.count
        self._quiet_until = self._clock() + _QUIET_S
        strangers = "a stranger" if new == 1 else f"{new} strangers"
        last = self._last if new == 1 else f"the last from {self._last}"
        _log.warning(
            "%s turned %s away (%s). Somebody tries its ports, or a rank has another key.",
            self._who,
            strangers,
            last,
        )


MOST_AT_ONCE = 64
"""Connections that are accepted in one turn."""

HANDSHAKE_LIMIT_S = 10.0
"""By default. Where hundreds of ranks share a core, one that is expected may take longer."""

MORE_STRANGERS = 256
"""Places beside those of everybody who is expected: all may come at once."""

_MOST_EXPECTED = 1024
"""So many of those that are expected may be silent at once: their first words are on their way."""

_PENDING = frozenset(
    {
        *(errno.EPROTO, errno.ENOPROTOOPT, errno.EPERM, errno.EOPNOTSUPP, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.ENETUNREACH),
    }
)
"""Of a connection that has failed already: Linux gives them to whoever accepts it (accept(2))."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Of this process or machine: may be over in a moment."""


class Admission:
    """Accepts on any number of sockets. A stranger takes a place for a while and is dropped without an
    answer.

    There is always a place for the next connection. A handshake takes milliseconds where ranks have a core,
    so if there are too many, the oldest one is dropped; first those that have not yet proved the key. Where
    descriptors are lacking, only these: who has proved it believes that it is let in.

    Args:
        talks: runs the conversations.
        key: the key of the job.
        expected: what is wanted; each is taken out when it has come.
        answer: goes on with a proven connection, its purpose and its keys.
        who: this rank, for messages.
        limit_s: how long a handshake may take.
    """

    def __init__(
        self,
        talks: Conversations,
        key: bytes,
        expected: Iterable[Purpose],
        answer: Callable[[socket.socket, Purpose, Session], Conversation[None]],
        who: str,
        limit_s: float = HANDSHAKE_LIMIT_S,
    ) -> None:
        self._talks = talks
        self._key = key
        self._expected = set(expected)
        self._places = len(self._expected) + MORE_STRANGERS
        self._silent_places = min(len(self._expected), _MOST_EXPECTED) + MORE_STRANGERS
        self._short = False
        self._answer = answer
        self._who = who
        self._limit_s = limit_s
        self._accepting: list[Conversation[None]] = []
        self._heard: set[bytes] = set()
        self._silent: dict[int, Conversation[None]] = {}  # have not said a hello that proves the key
        self._greeted: dict[int, Conversation[None]] = {}
        self._numbers = itertools.count()
        self.refusals = Refusals(who)

    def start(self, listeners: Iterable[socket.socket]) -> None:
        """Begin to accept."""
        for listener in listeners:
            accepting = self._accept_all(listener)
            self._accepting.append(accepting)
            self._talks.start(accepting)

    @property
    def expects(self) -> bool:
        """True while somebody is still to come."""
        return bool(self._expected)

    def expect(self, purpose: Purpose) -> None:
        """Expect a connection again that was let in and then lost."""
        self._expected.add(purpose)

    def stop(self) -> None:
        """Accept nobody any more: the sockets may be closed."""
        for accepting in self._accepting:
            self._talks.stop(accepting)

    def _accept_all(self, listener: socket.socket) -> Conversation[None]:
        accepted = 0
        while self._expected:
            if accepted == MOST_AT_ONCE:
                accepted = 0
                yield NOW
            accepted += 1
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                accepted = 0
                yield listener, selectors.EVENT_READ
                continue
            except ConnectionError as error:
                _log.debug("%s: a connection was gone before it was accepted: %s", self._who, error)
                continue
            except OSError as error:
                if error.errno in _PENDING:
                    _log.debug("%s: a connection had failed before it was accepted: %s", self._who, error)
                    continue
                if error.errno not in _SHORTAGES:
                    raise
                self._tell_shortage(error)
                self._drop_oldest(self._silent, "no descriptor is left")
                yield PAUSE
                yield listener, selectors.EVENT_READ  # the last one that there was may have been taken
                continue
            self._take_in(connection)

    def _take_in(self, connection: socket.socket) -> None:
        if other_user(connection) is not None:
            self.refusals.add(whence(connection), "another user")
            connection.close()
            return
        if len(self._silent) >= self._silent_places:
            self._drop_oldest(self._silent, "others came")
        elif len(self._silent) + len(self._greeted) >= self._places:
            self._drop_oldest(self._silent or self._greeted, "others came")
        number = next(self._numbers)
        self._silent[number] = self._greet(connection, number)
        self._talks.start(self._silent[number], self._limit_s)

    def _drop_oldest(self, among: dict[int, Conversation[None]], reason: str) -> None:
        for stranger in list(among.values())[:1]:
            self.refusals.add("somebody", reason)
            self._talks.stop(stranger)

    def _tell_shortage(self, error: OSError) -> None:
        """Once: it lasts, or is over."""
        level = logging.DEBUG if self._short else logging.WARNING
        self._short = True
        _log.log(level, "%s cannot accept connections of other ranks for now: %s", self._who, error.strerror)

    def _greet(self, connection: socket.socket, number: int) -> Conversation[None]:
        with contextlib.ExitStack() as doomed:
            doomed.callback(connection.close)
            try:
                purpose, session = yield from self._prove(connection, number)
            except (AuthenticationError, TimeoutError) as error:
                self.refusals.add(whence(connection), str(error))
                return
            except OSError as error:  # the peer has closed it already
                _log.debug("%s: a connection ended in its handshake: %s", self._who, error)
                return
            finally:
                self._silent.pop(number, None)
                self._greeted.pop(number, None)
            if purpose not in self._expected:
                return  # the same purpose was proven a moment ago by another connection
            doomed.pop_all()
        self._expected.remove(purpose)
        yield from self._answer(connection, purpose, session)

    def _prove(self, connection: socket.socket, number: int) -> Conversation[tuple[Purpose, Session]]:
        """The other side of ``conversation.dial``: what it is for, and the keys of what follows."""
        connection.setblocking(False)
        tune(connection)
        acceptor = Acceptor(self._key, self._expected.__contains__, self._heard)
        reply = acceptor.reply((yield from receive(connection, HELLO_BYTES)))
        if number in self._silent:
            self._greeted[number] = self._silent.pop(number)
        yield from send(connection, reply)
        purpose = acceptor.verify((yield from receive(connection, PROOF_BYTES)))
        return purpose, acceptor.session()
