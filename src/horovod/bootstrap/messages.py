"""Frames between the launcher, the store and the workers: a length, then one JSON object.

A frame is a 4-byte big-endian length, that many bytes of UTF-8 JSON and a tag over both. Frames are only ever
read from a peer that has proved that it knows the job's key (``bootstrap/handshake.py``), and parsed only if
their tag says that they are what it sent (``bootstrap/session.py``); nothing is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

__all__ = ["ALTERED", "MAX_FRAME_BYTES", "AlteredError", "FrameError", "FrameReader", "encode", "encode_body"]

MAX_FRAME_BYTES = 64 << 20
"""Largest frame accepted: the address book of 100,000 ranks fits, a wrong length does not exhaust memory."""

ALTERED = (
    "what came over that connection is not what the other side sent. Somebody between the two hosts changed, "
    "repeated or left out a part of it; nothing of it was used."
)
"""The sentence for ``AlteredError``."""

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """Bytes that are not a frame: too long, not JSON, or not an object. The connection is of no further
    use.
    """


class AlteredError(FrameError):
    """A frame is not the one that the other side sent at this place: somebody on the way changed, repeated or
    left out a part of the stream.
    """


class Checker(Protocol):
    """Knows the tags that frames must have, in order."""

    tag_bytes: int

    def right(self, message: bytes, tag: bytes) -> bool:
        """Whether ``tag`` is that of the next message."""


def encode_body(body: bytes, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Put a length before ``body``, which is JSON already. Raises ``FrameError`` above ``limit_bytes``."""
    if len(body) > limit_bytes:
        raise FrameError(f"a message of {len(body)} bytes is over the limit of {limit_bytes}")
    return _LENGTH.pack(len(body)) + body


def encode(message: Mapping[str, Any], limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame that says ``message``. Raises ``FrameError`` above ``limit_bytes``."""
    return encode_body(json.dumps(message, separators=(",", ":")).encode(), limit_bytes)


class FrameReader:
    """Cuts a stream of bytes into messages; keeps what is incomplete.

    Args:
        limit_bytes: of a frame, its length and tag not counted. A length is believed before the tag, up to
            this: who changes it makes us wait, as who holds the stream back does.
        checker: says whether the tag of a frame is right; None: frames have none, as they do not come from
            outside.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES, checker: Checker | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._checker = checker
        self._tag_bytes = 0 if checker is None else checker.tag_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message that ``data`` completes.

        Raises:
            AlteredError: the tag of a frame is wrong.
            FrameError: it is right, but the bytes are no frame.
        """
        self._pending += data
        start = 0
        try:
            while len(self._pending) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._pending, start)
                if length > self._limit_bytes:
                    raise FrameError(f"a message of {length} bytes is over the limit of {self._limit_bytes}")
                end = start + _LENGTH.size + length
                if len(self._pending) < end + self._tag_bytes:
                    break
                frame = bytes(self._pending[start:end])
                tag = bytes(self._pending[end : end + self._tag_bytes])
                if self._checker is not None and not self._checker.right(frame, tag):
                    raise AlteredError("a message is not the one that was sent")
                body = frame[_LENGTH.size :]
                start = end + self._tag_bytes
                yield _parse(body)
        finally:
            del self._pending[:start]


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a message is a {type(message).__name__}, not an object")
    return message
