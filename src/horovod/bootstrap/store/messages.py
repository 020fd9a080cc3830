"""Frames between the launcher, the store and the workers: a length, then one JSON object.

A frame is a 4-byte big-endian length, that many bytes of UTF-8 JSON and a tag over both. Frames are only ever
read from a peer that has proved that it knows the job's key (``bootstrap/trust/handshake.py``), and parsed
only if their tag says that they are what it sent (``bootstrap/trust/session.py``); nothing is ever unpickled.

Answers of the store may be deflated (RFC 1951): the highest bit of the length says so. The book of all ranks
goes to all ranks, so it is deflated and kept once, whatever stands before and behind it in each answer.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "ALTERED",
    "MAX_FRAME_BYTES",
    "AlteredError",
    "FrameError",
    "FrameReader",
    "SharedBody",
    "encode",
]

MAX_FRAME_BYTES = 64 << 20
"""Largest frame accepted: the address book of 100,000 ranks fits, a wrong length does not exhaust memory."""

ALTERED = (
    "what came over that connection is not what the other side sent. Somebody between the two hosts changed, "
    "repeated or left out a part of it; nothing of it was used."
)
"""The sentence for ``AlteredError``."""

_LENGTH = struct.Struct(">I")
_DEFLATED = 1 << 31  # in a length
_RAW = -zlib.MAX_WBITS  # without a header: the tag of a frame says more than its checksum
_WORTH_DEFLATING_BYTES = 4096
_LONG_BYTES = 8 << 20  # so long that to deflate it well would keep others waiting
_STORED = struct.Struct("<BHH")  # the head of a block that is not compressed (RFC 1951, section 3.2.4)


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
        """Return whether ``tag`` is that of the next message."""


def encode(message: Mapping[str, Any], limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame that says ``message``. Raises ``FrameError`` above ``limit_bytes``."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > limit_bytes:
        raise FrameError(f"a message of {len(body)} bytes is over the limit of {limit_bytes}")
    return _LENGTH.pack(len(body)) + body


@dataclass(frozen=True)
class SharedBody:
    """JSON that goes to many, each time between two short texts of its own.

    A deflated stream is a sequence of blocks, which need not be compressed. So the short texts are blocks of
    their own, and what is between them is compressed once for all.
    """

    blocks: bytes
    """The JSON as it is, or compressed: whole blocks, none of them the last one of its stream."""
    deflated: bool
    json_bytes: int

    @classmethod
    def plain(cls, body: bytes) -> SharedBody:
        """As it is."""
        return cls(body, False, len(body))

    @classmethod
    def of(cls, body: bytes) -> SharedBody:
        """Compressed, if it is long, but not too long for any frame."""
        if not _WORTH_DEFLATING_BYTES <= len(body) <= MAX_FRAME_BYTES:
            return cls.plain(body)
        level = zlib.Z_DEFAULT_COMPRESSION if len(body) < _LONG_BYTES else zlib.Z_BEST_SPEED
        deflate = zlib.compressobj(level, wbits=_RAW)
        return cls(deflate.compress(body) + deflate.flush(zlib.Z_FULL_FLUSH), True, len(body))

    def frame(self, before: bytes, behind: bytes) -> tuple[bytes, bytes, bytes]:
        """The parts of a frame that says ``before``, this, ``behind``. Raises ``FrameError`` if it is too
        long.
        """
        json_bytes = len(before) + self.json_bytes + len(behind)
        if json_bytes > MAX_FRAME_BYTES:
            raise FrameError(f"a message of {json_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
        if not self.deflated:
            return _LENGTH.pack(json_bytes) + before, self.blocks, behind
        first, last = _stored(before), _stored(behind, last=True)
        length = len(first) + len(self.blocks) + len(last)
        return _LENGTH.pack(length | _DEFLATED) + first, self.blocks, last


def _stored(text: bytes, *, last: bool = False) -> bytes:
    return _STORED.pack(int(last), len(text), len(text) ^ 0xFFFF) + text


class FrameReader:
    """Cuts a stream of bytes into messages; keeps what is incomplete.

    Args:
        limit_bytes: of a frame, its length and tag not counted, and of its JSON. A length is believed before
            the tag, up to this: who changes it makes us wait, as who holds the stream back does.
        checker: says whether the tag of a frame is right; None: frames have none, as they do not come from
            outside.
        inflates: whether frames may be deflated.
    """

    def __init__(
        self, limit_bytes: int = MAX_FRAME_BYTES, checker: Checker | None = None, *, inflates: bool = False
    ) -> None:
        self._limit_bytes = limit_bytes
        self._checker = checker
        self._inflates = inflates
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
                deflated = self._inflates and bool(length & _DEFLATED)
                length -= _DEFLATED if deflated else 0
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
                yield _parse(_inflated(body, self._limit_bytes) if deflated else body)
        finally:
            del self._pending[:start]


def _inflated(body: bytes, limit_bytes: int) -> bytes:
    inflate = zlib.decompressobj(wbits=_RAW)
    try:
        text = inflate.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise FrameError(f"a message cannot be inflated: {error}") from error
    if len(text) > limit_bytes:
        raise FrameError(f"a message of more than {limit_bytes} bytes is over the limit")
    if not inflate.eof or inflate.unused_data:
        raise FrameError("a deflated message does not end where its frame does")
    return text


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a message is a {type(message).__name__}, not an object")
    return message
