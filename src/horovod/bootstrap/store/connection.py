"""The server's side of one connection to the store: the handshake, then frames."""

from __future__ import annotations

import collections
import itertools
import selectors
import socket
from typing import Any

from horovod.bootstrap.store.messages import FrameReader
from horovod.bootstrap.trust.handshake import HELLO_BYTES, PROOF_BYTES, Acceptor, Purpose
from horovod.bootstrap.trust.session import Signer

__all__ = ["RECEIVE_BYTES", "StoreConnection"]

RECEIVE_BYTES = 1 << 16

_MOST_PIECES = 64  # that one call sends; systems allow 1,024
_KEPT_APART_BYTES = 4096


class Outgoing:
    """Data that has to go out. A long piece that goes to many is kept once for all of them; short ones are
    put together.
    """

    def __init__(self) -> None:
        self._pieces: collections.deque[memoryview | bytearray] = collections.deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, *pieces: bytes) -> None:
        """Put ``pieces`` behind what is there."""
        for piece in pieces:
            self._size += len(piece)
            if len(piece) >= _KEPT_APART_BYTES:
                self._pieces.append(memoryview(piece))
            elif self._pieces and isinstance(self._pieces[-1], bytearray):
                self._pieces[-1] += piece
            elif piece:
                self._pieces.append(bytearray(piece))

    def send(self, connection: socket.socket) -> None:
        """Send what fits. Raises ``OSError`` when the connection ended."""
        while self._pieces:
            try:
                sent = connection.sendmsg(list(itertools.islice(self._pieces, _MOST_PIECES)))
            except BlockingIOError:
                return
            self._size -= sent
            while self._pieces and sent >= len(self._pieces[0]):
                sent -= len(self._pieces.popleft())
            if sent:
                self._skip(sent)

    def _skip(self, count: int) -> None:
        first = self._pieces[0]
        if isinstance(first, bytearray):
            del first[:count]
        else:
            self._pieces[0] = first[count:]


class StoreConnection:
    """One that came in over ``listener``, for ``purpose`` or not at all. ``deadline``: of the handshake."""

    def __init__(
        self,
        number: int,
        accepted: socket.socket,
        listener: socket.socket,
        key: bytes,
        purpose: Purpose,
        deadline: float,
        heard: set[bytes],
    ) -> None:
        self.number = number
        self.socket = accepted
        self.listener = listener
        self.deadline = deadline
        self.stranger = True
        self.asked = False  # a first message came
        self.events = selectors.EVENT_READ
        self.outgoing = Outgoing()
        self._acceptor = Acceptor(key, purpose.__eq__, heard)
        self.greeted = False
        self._received = bytearray()
        self._reader: FrameReader | None = None  # until the handshake is over
        self._signer: Signer | None = None

    @property
    def from_afar(self) -> bool:
        """True if the other side is on another host: its address is not the one that it connected to."""
        return self.socket.family != socket.AF_UNIX and (
            self.socket.getpeername()[0] != self.socket.getsockname()[0]
        )

    def receive(self) -> list[dict[str, Any]]:
        """The messages that arrived; none while in the handshake.

        Raises:
            OSError: the connection ended.
            AuthenticationError, FrameError: it must be closed.
        """
        if self._reader is not None:
            return list(self._reader.feed(self._read(RECEIVE_BYTES)))
        expected = PROOF_BYTES if self.greeted else HELLO_BYTES
        self._received += self._read(expected - len(self._received))
        if len(self._received) == expected:
            whole, self._received = bytes(self._received), bytearray()
            if self.greeted:
                self._acceptor.verify(whole)
                self.stranger = False
                session = self._acceptor.session()
                self._reader = FrameReader(checker=session.checker())
                self._signer = session.signer()
            else:
                self.outgoing.add(self._acceptor.reply(whole))
                self.greeted = True
        return []

    def say(self, *frame: bytes) -> None:
        """Sign a frame, these parts of it, and put it behind what has to go out. After the handshake."""
        assert self._signer is not None
        self.outgoing.add(*frame, self._signer.tag(*frame))

    def send(self) -> None:
        """Send what fits. Raises ``OSError`` when the connection ended."""
        self.outgoing.send(self.socket)

    def _read(self, limit: int) -> bytes:
        try:
            data = self.socket.recv(limit)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError("the other side closed it")
        return data
