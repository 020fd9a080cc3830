"""The two ends of a handshake, and what is said with its keys, where somebody on the way changes it."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import struct
import time
from typing import Any

from fuzz.values import ANYTHING
from hypothesis import given
from hypothesis import strategies as st

from horovod.bootstrap.store.messages import AlteredError, FrameError, FrameReader, encode
from horovod.bootstrap.trust import handshake
from horovod.bootstrap.trust.conversation import Conversation, Conversations, greet, receive, send
from horovod.bootstrap.trust.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    RELEASE,
    REPLY_BYTES,
    Acceptor,
    Dialer,
    Purpose,
    Role,
)
from horovod.bootstrap.trust.session import TAG_BYTES, Session
from horovod.errors import AuthenticationError, VersionError

KEY = bytes(range(32))
PURPOSE = Purpose(Role.DATA, 1, 0)
LIMIT_BYTES = 1 << 12
IN_TIME_S = 5.0


@st.composite
def altered(draw: st.DrawFn, data: bytes) -> bytes:
    """``data``, whole or with a bit turned, cut, continued, replaced or said twice."""
    at = draw(st.integers(0, len(data) - 1))
    match draw(st.sampled_from(["", "bit", "cut", "more", "other", "twice", "zero"])):
        case "bit":
            return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "more":
            return data + draw(st.binary(min_size=1, max_size=200))
        case "other":
            return draw(st.binary(max_size=len(data) + 40))
        case "twice":
            return data + data
        case "zero":
            return bytes(len(data))
    return data


@given(data=st.data(), keys=st.sampled_from([True, True, True, False]), cut=st.integers(0, 400))
def test_a_dialer_and_an_acceptor_agree_or_both_refuse(data: st.DataObject, keys: bool, cut: int) -> None:
    """Whoever is between them: nobody takes a message for genuine that is not."""
    dialer = Dialer(KEY, PURPOSE)
    acceptor = Acceptor(KEY if keys else secrets.token_bytes(32), {PURPOSE}.__contains__)
    hello = data.draw(altered(dialer.hello))[:HELLO_BYTES].ljust(HELLO_BYTES, b"\0")
    try:
        true_reply = acceptor.reply(hello)
    except AuthenticationError:
        assert not keys or hello != dialer.hello
        return
    assert (keys, hello) == (True, dialer.hello)
    reply = data.draw(altered(true_reply) | st.just(hello))
    whole = reply[:REPLY_BYTES] if len(reply) >= REPLY_BYTES else None

    def call(connection: socket.socket) -> Conversation[None]:
        try:
            came.append((yield from greet(connection, dialer)))
        except (AuthenticationError, OSError) as error:
            came.append(error)

    came: list[Any] = []
    ours, theirs = socket.socketpair()
    with ours, theirs, Conversations() as talks:
        ours.setblocking(False)
        talks.start(call(ours))
        for part in (reply[: cut % (len(reply) + 1)], reply[cut % (len(reply) + 1) :]):
            theirs.sendall(part)
            talks.run(lambda: bool(came), time.monotonic())
        theirs.shutdown(socket.SHUT_WR)
        assert talks.run(lambda: bool(came), time.monotonic() + IN_TIME_S)
        assert theirs.recv(HELLO_BYTES) == dialer.hello, (
            "says hello and nothing else before it knows who is there"
        )
    if whole != true_reply:
        assert isinstance(came[0], (AuthenticationError, OSError))
        return
    proof = data.draw(altered(came[0]) | st.just(true_reply[-PROOF_BYTES:]))
    try:
        assert acceptor.verify(proof) == PURPOSE
    except AuthenticationError:
        assert proof != came[0]
        return
    assert proof == came[0]
    assert dialer.session().sending("x", 40) == acceptor.session().receiving("x", 40)
    assert dialer.session().receiving("x", 40) == acceptor.session().sending("x", 40)


@given(release=st.binary(max_size=32))
def test_any_release_is_ours_or_a_clear_word(release: bytes) -> None:
    """Who knows the key may be of any release, and say it in any way."""
    dialer = Dialer(KEY, PURPOSE)
    nonce = bytes(32)
    said = nonce + handshake._masked(release.ljust(32, b"\0"), KEY, dialer.hello, nonce)
    try:
        dialer.answer(said + handshake._tag(KEY, b"acceptor", dialer.hello, said))
    except VersionError as error:
        refused = str(error)
    else:
        refused = ""
    assert (RELEASE in refused) == (release.rstrip(b"\0") != RELEASE.encode())


def some_bytes(length: int) -> bytes:
    return (bytes(range(251)) * 3)[:length]


@given(
    data=st.integers(0, 600).map(some_bytes),
    size=st.integers(1, 300),
    pieces=st.lists(st.integers(1, 64), max_size=20),
    ends=st.booleans(),
)
def test_not_one_byte_too_many_is_taken(data: bytes, size: int, pieces: list[int], ends: bool) -> None:
    came: list[bytes | OSError] = []

    def read(connection: socket.socket) -> Conversation[None]:
        try:
            came.append((yield from receive(connection, size)))
        except OSError as error:
            came.append(error)

    def write(connection: socket.socket) -> Conversation[None]:
        at = 0
        for piece in [*pieces, len(data)]:
            yield from send(connection, data[at : at + piece])
            at += piece
            yield 0.0
        if ends:
            connection.shutdown(socket.SHUT_WR)

    ours, theirs = socket.socketpair()
    with ours, theirs, Conversations() as talks:
        for each in (ours, theirs):
            each.setblocking(False)
        talks.start(read(ours))
        talks.start(write(theirs))
        if len(data) < size and not ends:
            talks.run(lambda: bool(came), time.monotonic())
            assert not came
            return
        assert talks.run(lambda: bool(came), time.monotonic() + IN_TIME_S)
        if len(data) < size:
            assert isinstance(came[0], ConnectionResetError)
            return
        assert came[0] == data[:size]
        while len(talks._waiting):
            talks.run(lambda: not talks._waiting, time.monotonic() + IN_TIME_S)
        rest = ours.recv(1 << 12) if len(data) > size else b""
        assert rest == data[size:]


FAULTS = ["again", "left out", "swapped", "bit", "longer", "shorter", "giant", "junk", "reflected", "cut"]


def spoil(frames: list[bytes], fault: str, at: int, bit: int, back: bytes) -> list[bytes]:
    """What somebody on the way makes of ``frames``."""
    before, frame, after = frames[:at], frames[at], frames[at + 1 :]
    (length,) = struct.unpack_from(">I", frame)
    match fault:
        case "again":
            return [*before, frame, frame, *after]
        case "left out":
            return [*before, *after]
        case "swapped":
            return [*before, *after[:1], frame, *after[1:]]
        case "bit":
            place = bit // 8 % len(frame)
            return [
                *before,
                frame[:place] + bytes([frame[place] ^ 1 << bit % 8]) + frame[place + 1 :],
                *after,
            ]
        case "longer":
            return [*before, struct.pack(">I", length + 1 + bit % 64) + frame[4:], *after]
        case "shorter":
            return [*before, struct.pack(">I", bit % length) + frame[4:], *after]
        case "giant":
            return [*before, struct.pack(">I", 1 << 31 | bit) + frame[4:], *after]
        case "junk":
            return [*before, frame[: bit % 32], frame, *after]
        case "reflected":
            return [*before, back, *after]
    return [*before, frame[: bit % len(frame)]]


@given(
    said=st.lists(
        st.dictionaries(st.sampled_from(["id", "op", "key"]), ANYTHING, max_size=3), min_size=1, max_size=4
    ),
    fault=st.sampled_from(FAULTS),
    at=st.integers(0, 3),
    bit=st.integers(0, 1 << 12),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=6),
)
def test_nothing_is_heard_but_what_was_said(
    said: list[dict[str, Any]], fault: str, at: int, bit: int, cuts: list[int]
) -> None:
    transcript = secrets.token_bytes(16)
    ends = [Session.of(KEY, transcript, dialed=dialed) for dialed in (True, False)]
    signer = ends[0].signer()
    said = [each for each in said if len(json.dumps(each)) < LIMIT_BYTES]
    if not said:
        return
    sent = [signer.signed(encode(each, LIMIT_BYTES)) for each in said]
    at %= len(sent)
    back = ends[1].signer().signed(encode(said[at]))
    stream = b"".join(spoil(sent, fault, at, bit, back))
    genuine = max(n for n in range(len(sent) + 1) if stream.startswith(b"".join(sent[:n])))
    reader = FrameReader(LIMIT_BYTES, ends[1].checker())
    heard: list[dict[str, Any]] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    refused = False
    try:
        for begin, end in itertools.pairwise(edges):
            heard.extend(reader.feed(stream[begin:end]))
            assert len(reader._pending) < 4 + LIMIT_BYTES + TAG_BYTES
    except AlteredError:
        refused = True
    except FrameError:
        refused = True
        assert fault in {"bit", "longer", "giant", "junk"}, (
            "a tag does not fit before it is read as anything else"
        )
    assert json.dumps(heard) == json.dumps(said[:genuine]), (
        "all that came before the fault, and nothing after it"
    )
    rest = len(stream) - len(b"".join(sent[:genuine]))
    assert refused or rest < 4 + LIMIT_BYTES + TAG_BYTES
