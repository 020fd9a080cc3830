"""Who is let in at the sockets of a rank: those that are expected, each once."""

from __future__ import annotations

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
_MAX_STRANGERS = 256


class Admission:
    """Accepts on any number of sockets; a stranger costs a place for a while and is dropped without a word.

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
        self._answer = answer
        self._who = who
        self._strangers = 0

    def start(self, listeners: Iterable[socket.socket]) -> None:
        """Begin to accept."""
        for listener in listeners:
            self._talks.start(self._accept_all(listener))

    def _accept_all(self, listener: socket.socket) -> Conversation[None]:
        while self._expected:
            while self._strangers >= _MAX_STRANGERS:
                yield PAUSE
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                yield listener, selectors.EVENT_READ
                continue
            self._strangers += 1
            self._talks.start(self._greet(connection), _HANDSHAKE_LIMIT_S)

    def _greet(self, connection: socket.socket) -> Conversation[None]:
        try:
            proven, purpose = yield from accept(connection, self._key, self._expected.__contains__)
        except (OSError, AuthenticationError) as error:
            _log.debug("%s refuses a connection: %s", self._who, error)
            return
        finally:
            self._strangers -= 1
        if purpose not in self._expected:
            proven.close()  # the same purpose was proven a moment ago by another connection
            return
        self._expected.remove(purpose)
        yield from self._answer(proven, purpose)
