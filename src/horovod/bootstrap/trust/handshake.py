"""Mutual proof of the job's key on a fresh connection, before anything else is read from it.

    dialer                                            acceptor
      hello = magic, purpose, nonce_d, HMAC(key, "hello" what is before)  ---->
                  <-------------  reply = nonce_a, release, HMAC(key, "acceptor" hello nonce_a release)
      proof = HMAC(key, "dialer" hello nonce_a release)  ---->

All three have a fixed size, so no length is ever trusted. The first message already proves the key: a
stranger is dropped after one tag was computed for it, and gets no answer. A recorded hello is refused by an
acceptor that remembers it (``heard``), and shows another one only that somebody is there. The purpose (role,
both ranks, stream index, a digest of job and epoch) is part of what is signed: a connection of another job,
an older round or another rank fails, a recorded proof fails because the acceptor's nonce is fresh, and a
proof cannot be reflected because the two sides sign different labels.

The acceptor's release of Farandole is masked with bytes that follow from the key and the nonces. A peer that
knows the key learns that the releases differ, and which they are; to anybody else it is noise. What comes
after the handshake may change with every release; the handshake itself must not.

Later messages are bound to the handshake by keys that both sides derive from it (``session.py``):
``session``.

This module does no input or output: the store and the mesh move the bytes.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass

from horovod.bootstrap.trust.session import Session
from horovod.errors import AuthenticationError, VersionError

__all__ = [
    "HELLO_BYTES",
    "PROOF_BYTES",
    "RELEASE",
    "REPLY_BYTES",
    "Acceptor",
    "Dialer",
    "Purpose",
    "Role",
    "store_purpose",
    "world_digest",
]

RELEASE = "0.1.0"
"""Of the distribution: all processes of a job must have the same."""

_MAGIC = b"faran\x00\x00\x03"
_HELLO = struct.Struct(">8sBBHII32s32s")
_NONCE_BYTES = 32
_RELEASE_BYTES = 32

HELLO_BYTES = _HELLO.size + hashlib.sha256().digest_size
REPLY_BYTES = _NONCE_BYTES + _RELEASE_BYTES + hashlib.sha256().digest_size
PROOF_BYTES = hashlib.sha256().digest_size


class Role(enum.IntEnum):
    """Kinds of traffic that a connection carries."""

    STORE = 0
    CONTROL = 1
    DATA = 2
    LOCAL = 3


@dataclass(frozen=True)
class Purpose:
    """Purpose of a connection. ``world`` is ``world_digest(job, scope of the round)``; ``index`` numbers
    parallel streams.
    """

    role: Role
    dialer: int = 0
    acceptor: int = 0
    index: int = 0
    world: bytes = bytes(32)


def world_digest(job_id: str, scope: str) -> bytes:
    """32 bytes that stand for one round of one job; for the whole job without a ``scope``."""
    return hashlib.sha256(f"{len(job_id)}:{job_id}:{scope}".encode()).digest()


def store_purpose(job_id: str) -> Purpose:
    """Of a connection to the store of a job, in whichever round. One key may be that of several jobs."""
    return Purpose(Role.STORE, world=world_digest(job_id, ""))


class Dialer:
    """The connecting side: send ``hello``, read ``REPLY_BYTES``, send what ``answer`` returns."""

    def __init__(self, key: bytes, purpose: Purpose) -> None:
        self._key = key
        self._said = b""
        self.purpose = purpose
        nonce = secrets.token_bytes(_NONCE_BYTES)
        wish = _HELLO.pack(
            _MAGIC, purpose.role, 0, purpose.index, purpose.dialer, purpose.acceptor, purpose.world, nonce
        )
        self.hello = wish + _tag(key, b"hello", wish, b"")

    def answer(self, reply: bytes) -> bytes:
        """Check the acceptor's proof and return ours.

        Raises:
            AuthenticationError: it does not know the key.
            VersionError: it does, but is of another release.
        """
        said, tag = reply[: _NONCE_BYTES + _RELEASE_BYTES], reply[_NONCE_BYTES + _RELEASE_BYTES :]
        if not hmac.compare_digest(tag, _tag(self._key, b"acceptor", self.hello, said)):
            raise AuthenticationError("The other side does not know the key of this job.")
        self._said = said
        nonce, masked = said[:_NONCE_BYTES], said[_NONCE_BYTES:]
        release = _masked(masked, self._key, self.hello, nonce).rstrip(b"\0").decode(errors="replace")
        if release != RELEASE:
            other = "The store" if self.purpose.role is Role.STORE else f"Rank {self.purpose.acceptor}"
            raise VersionError(
                f"{other} runs Farandole {release}, this process Farandole {RELEASE}. "
                "Install the same version on every host.",
                own=RELEASE,
                other=release,
            )
        return _tag(self._key, b"dialer", self.hello, said)

    def session(self) -> Session:
        """The keys of the connection. After ``answer``."""
        return Session.of(self._key, self.hello + self._said, dialed=True)


class Acceptor:
    """The side that is connected to: read ``HELLO_BYTES``, send ``reply(...)``, read ``PROOF_BYTES``,
    ``verify``.

    Args:
        key: the key of the job.
        expects: whether a connection of this purpose is wanted here; asked before anything is signed.
        heard: the nonces of all hellos that were answered, which is kept up: each is answered once. Only who
            knows the key adds to it.
    """

    def __init__(
        self, key: bytes, expects: Callable[[Purpose], bool], heard: set[bytes] | None = None
    ) -> None:
        self._key = key
        self._expects = expects
        self._heard = set() if heard is None else heard
        self._hello = b""
        self._said = b""
        self._purpose: Purpose | None = None

    def reply(self, hello: bytes) -> bytes:
        """Our nonce, release and proof. Raises ``AuthenticationError`` for anything but a wanted hello."""
        wish, tag = hello[: _HELLO.size], hello[_HELLO.size :]
        if not wish.startswith(_MAGIC):
            raise AuthenticationError("The other side does not speak this protocol.")
        if not hmac.compare_digest(tag, _tag(self._key, b"hello", wish, b"")):
            raise AuthenticationError("The other side does not know the key of this job.")
        _, role, zero, index, dialer, acceptor, world, theirs = _HELLO.unpack(wish)
        if zero != 0 or role not in Role.__members__.values():
            raise AuthenticationError("The other side does not speak this protocol.")
        if theirs in self._heard:
            raise AuthenticationError("This was said before: somebody has recorded it.")
        purpose = Purpose(Role(role), dialer, acceptor, index, world)
        if not self._expects(purpose):
            raise AuthenticationError(f"Nobody expects this connection: {_describe(purpose)}.")
        self._heard.add(theirs)
        self._purpose = purpose
        self._hello = hello
        nonce = secrets.token_bytes(_NONCE_BYTES)
        release = RELEASE.encode().ljust(_RELEASE_BYTES, b"\0")
        self._said = nonce + _masked(release, self._key, hello, nonce)
        return self._said + _tag(self._key, b"acceptor", hello, self._said)

    def verify(self, proof: bytes) -> Purpose:
        """Return the connection's purpose, now proven. Raises ``AuthenticationError`` on a wrong proof."""
        if self._purpose is None or not hmac.compare_digest(
            proof, _tag(self._key, b"dialer", self._hello, self._said)
        ):
            raise AuthenticationError("The other side does not know the key of this job.")
        return self._purpose

    def session(self) -> Session:
        """The keys of the connection. After ``verify``."""
        return Session.of(self._key, self._hello + self._said, dialed=False)


def _tag(key: bytes, label: bytes, hello: bytes, said: bytes) -> bytes:
    return hmac.digest(key, label + b"\x00" + hello + said, "sha256")


def _masked(release: bytes, key: bytes, hello: bytes, nonce: bytes) -> bytes:
    """Masks, and takes the mask off again: no two connections have the same one."""
    return bytes(a ^ b for a, b in zip(release, _tag(key, b"release", hello, nonce), strict=True))


def _describe(purpose: Purpose) -> str:
    return f"{purpose.role.name.lower()} from rank {purpose.dialer} to rank {purpose.acceptor}"
