"""The server's side of one connection to the store: the handshake, then frames."""

from __future__ import annotations

import selectors
import socket
from typing import Any

from horovod.bootstrap.handshake import HELLO_BYTES, PROOF_BYTES, Acceptor, Purpose
from horovod.bootstrap.messages import FrameReader
from horovod.bootstrap.session import Signer

__all__ = ["RECEIVE_BYTES", "StoreConnection"]

RECEIVE_BYTES = 1 << 16


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
        self.outgoing = bytearray()
        self._acceptor = Acceptor(key, purpose.__eq__, heard)
        self.greeted = False
        self._received = bytearray()
        self._reader: FrameReader | None = None  # until the handshake is over
        self._signer: Signer | None = None

    @property
    def from_afar(self) -> bool:
        """It is one of another host: from an address that is not the one it was made to."""
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
                self.outgoing += self._acceptor.reply(whole)
                self.greeted = True
        return []

    def say(self, frame: bytes) -> None:
        """Sign a frame and put it behind what has to go out. After the handshake."""
        assert self._signer is not None
        self.outgoing += self._signer.signed(frame)

    def send(self) -> None:
        """Send what fits. Raises ``OSError`` when the connection ended."""
        while self.outgoing:
            try:
                sent = self.socket.send(self.outgoing)
            except BlockingIOError:
                return
            del self.outgoing[:sent]

    def _read(self, limit: int) -> bytes:
        try:
            data = self.socket.recv(limit)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError("the other side closed it")
        return data
