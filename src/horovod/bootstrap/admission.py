"""Who is let in at the sockets of a rank: those that are expected, each once."""

from __future__ import annotations

import errno
import itertools
import logging
import selectors
import socket
from collections.abc import Callable, Iterable

from horovod.bootstrap.conversation import PAUSE, Conversation, Conversations, accept
from horovod.bootstrap.handshake import Purpose
from horovod.errors import AuthenticationError

__all__ = ["Admission"]

_log = logging.getLogger("horovod.bootstrap")

_HANDSHAKE_LIMIT_S = 10.0
_MORE_STRANGERS = 256
"""Places beside those of everybody who is expected: all may come at once."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Of this process or machine: may be over in a moment."""


class Admission:
    """Accepts on any number of sockets; a stranger costs a place for a while and is dropped without a word.

    There is always a place for the next one: a handshake takes milliseconds, so of too many strangers the
    oldest is dropped.

    Args:
        talks: runs the conversations.
        key: the key of the job.
        expected: what is wanted; each is taken out when it has come.
        answer: goes on with a proven connection.
        who: this rank, for messages.
    """

    def __init__(
        self,
        talks: Conversations,
        key: bytes,
        expected: Iterable[Purpose],
        answer: Callable[[socket.socket, Purpose], Conversation[None]],
        who: str,
    ) -> None:
        self._talks = talks
        self._key = key
        self._expected = set(expected)
        self._places = len(self._expected) + _MORE_STRANGERS
        self._answer = answer
        self._who = who
        self._strangers: dict[int, Conversation[None]] = {}
        self._numbers = itertools.count()

    def start(self, listeners: Iterable[socket.socket]) -> None:
        """Begin to accept."""
        for listener in listeners:
            self._talks.start(self._accept_all(listener))

    def _accept_all(self, listener: socket.socket) -> Conversation[None]:
        while self._expected:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                yield listener, selectors.EVENT_READ
                continue
            except ConnectionError as error:
                _log.debug("%s: a connection was gone before it was accepted: %s", self._who, error)
                continue
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                _log.debug("%s cannot accept a connection now: %s", self._who, error)
                self._drop_oldest()
                yield PAUSE
                continue
            if len(self._strangers) >= self._places:
                self._drop_oldest()
            number = next(self._numbers)
            self._strangers[number] = self._greet(connection, number)
            self._talks.start(self._strangers[number], _HANDSHAKE_LIMIT_S)

    def _drop_oldest(self) -> None:
        for stranger in list(self._strangers.values())[:1]:
            self._talks.stop(stranger)

    def _greet(self, connection: socket.socket, number: int) -> Conversation[None]:
        try:
            proven, purpose = yield from accept(connection, self._key, self._expected.__contains__)
        except (OSError, AuthenticationError) as error:
            _log.debug("%s refuses a connection: %s", self._who, error)
            return
        finally:
            self._strangers.pop(number, None)
        if purpose not in self._expected:
            proven.close()  # the same purpose was proven a moment ago by another connection
            return
        self._expected.remove(purpose)
        yield from self._answer(proven, purpose)
