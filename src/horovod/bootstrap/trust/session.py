"""Sessions bind everything after a handshake to it: they have the keys of one connection, and tag messages
with them.

The keys are derived from the job's key and everything that was said in the handshake (HKDF-SHA256, RFC 5869):
the purpose of the connection, with job, round and ranks, and the nonces of both sides. So they are those of
one connection and of no other one, and each direction has its own. Who relays a handshake without knowing the
key of the job does not know them.

Whoever learns the job's key later can derive the keys of what was recorded: there is no forward secrecy.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field

__all__ = ["TAG_BYTES", "Session", "Signer", "expand"]

TAG_BYTES = 16
"""Of HMAC-SHA256: a guess is right once in 2^128 times, and each costs a connection."""

_NUMBER = struct.Struct(">Q")


@dataclass(frozen=True)
class Session:
    """The keys of one connection, as one of its two ends sees them."""

    _secret: bytes = field(repr=False)
    _dialed: bool

    @classmethod
    def of(cls, key: bytes, transcript: bytes, *, dialed: bool) -> Session:
        """Of a connection on which ``transcript`` was said; ``dialed``: this end is the dialer."""
        return cls(hmac.digest(transcript, key, "sha256"), dialed)

    def sending(self, label: str, size: int) -> bytes:
        """``size`` bytes of key for what this end sends, those that the other one has for ``receiving``."""
        return expand(self._secret, f"{_sender(dialer=self._dialed)} {label}", size)

    def receiving(self, label: str, size: int) -> bytes:
        """The other direction's."""
        return expand(self._secret, f"{_sender(dialer=not self._dialed)} {label}", size)

    def signer(self) -> Signer:
        """Makes the tags of the messages that this end sends."""
        return Signer(self.sending("messages", hashlib.sha256().digest_size))

    def checker(self) -> Signer:
        """Makes the tags that the messages of the other end must have."""
        return Signer(self.receiving("messages", hashlib.sha256().digest_size))


class Signer:
    """The tags of one direction, in order: each message has a number, which nobody needs to send."""

    tag_bytes = TAG_BYTES

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def tag(self, *parts: bytes) -> bytes:
        """Of the next message, which these are the parts of: ``TAG_BYTES``."""
        signed = hmac.new(self._key, _NUMBER.pack(self._number), "sha256")
        for part in parts:
            signed.update(part)
        self._number += 1
        return signed.digest()[:TAG_BYTES]

    def signed(self, message: bytes) -> bytes:
        """The next message with its tag behind it."""
        return message + self.tag(message)

    def right(self, message: bytes, tag: bytes) -> bool:
        """Return whether ``tag`` is that of the next message."""
        return hmac.compare_digest(tag, self.tag(message))


def expand(secret: bytes, label: str, size: int) -> bytes:
    """``size`` bytes that follow from ``secret`` and ``label``: the second half of HKDF-SHA256."""
    made, block = b"", b""
    while len(made) < size:
        number = len(made) // hashlib.sha256().digest_size + 1
        block = hmac.digest(secret, block + b"farandole " + label.encode() + bytes([number]), "sha256")
        made += block
    return made[:size]


def _sender(*, dialer: bool) -> str:
    return "dialer" if dialer else "acceptor"
