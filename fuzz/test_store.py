"""The store among clients that say anything: a request, or the end of that client, and of nobody else."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from fuzz.values import ANYTHING, DEEP, SHORT_TEXT, changed
from hypothesis import given
from hypothesis import strategies as st

from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.messages import MAX_FRAME_BYTES, FrameError, FrameReader
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Table
from horovod.bootstrap.trust.handshake import REPLY_BYTES, Dialer, store_purpose
from horovod.errors import HorovodError

KEY = bytes(range(32))
CAUSE = {"text": "why", "missing": [1, 2], "waited_s": 2.0, "rank": 1, "host": "a"}
REQUESTS: list[dict[str, Any]] = [
    {"op": "set", "key": "a/0", "value": [1, {"b": None}]},
    {"op": "get", "key": "a/0", "timeout_s": 1.0},
    {"op": "compare_and_set", "key": "a/1", "expected": None, "value": 1},
    {"op": "add", "key": "n", "amount": 1},
    {"op": "collect", "prefix": "a/", "count": 2, "timeout_s": 1.0},
    {"op": "remove", "prefix": "a/"},
    {"op": "watch", "scope": "a/", "who": "rank 1", "rank": 1, "host": "a"},
    {"op": "unwatch", "scope": "a/"},
    {"op": "abort", "scope": "a/", "cause": CAUSE},
]
requests = (
    st.sampled_from(REQUESTS)
    .flatmap(lambda request: changed({"id": 1, **request}))
    .filter(lambda message: isinstance(message, dict))
)


@given(
    said=st.lists(st.tuples(st.integers(0, 2), requests), max_size=8),
    seconds=st.floats(0, 5),
    left=SHORT_TEXT,
)
def test_a_table_answers_or_refuses(
    said: list[tuple[int, dict[str, Any]]], seconds: float, left: str
) -> None:
    now = 0.0
    table = Table(lambda: now)
    gone: set[int] = set()
    for who, message in said:
        if who in gone:
            continue
        try:
            table.request(who, json.loads(json.dumps(message)))
        except FrameError:
            gone.add(who)
            table.leave(who)
        wait_s = table.expire()
        assert wait_s is None or 0.0 <= wait_s < 1e9, "a time that the system can wait for"
    now = seconds
    table.expire()
    for who in range(3):
        table.leave(who)
    assert not table.waits(0)
    for number, parts in table.replies:
        frame = b"".join(parts)
        assert number in range(3)
        (length,) = struct.unpack_from(">I", frame)
        assert length == len(frame) - 4 <= MAX_FRAME_BYTES
        assert isinstance(json.loads(frame[4:]), dict)
    table.request(7, {"id": 1, "op": "set", "key": "after/", "value": left})


bodies = st.one_of(
    requests.map(lambda request: json.dumps(request).encode()),
    st.binary(max_size=60),
    DEEP.map(lambda text: b'{"id":1,"op":"set","key":"k","value":' + text.encode() + b"}"),
    st.integers(1, 20_000).map(lambda digits: b'{"id":' + b"9" * digits + b',"op":"get"}'),
    ANYTHING.map(lambda value: json.dumps(value).encode()),
)


def proven(server: StoreServer) -> tuple[socket.socket, Any]:
    """A connection that has passed the handshake, and what signs on it."""
    connection = socket.create_connection(server.address, 5.0)
    dialer = Dialer(KEY, store_purpose(""))
    connection.sendall(dialer.hello)
    reply = b""
    while len(reply) < REPLY_BYTES:
        data = connection.recv(REPLY_BYTES - len(reply))
        assert data
        reply += data
    connection.sendall(dialer.answer(reply))
    return connection, dialer.session().signer()


@given(
    early=st.lists(st.binary(max_size=150), max_size=3),
    ends=st.lists(st.binary(max_size=200), max_size=2),
    late=st.lists(st.tuples(bodies, st.sampled_from(["", "length", "tag", "cut", "twice"])), max_size=4),
)
def test_a_server_serves_the_others_whatever_one_says(
    early: list[bytes], ends: list[bytes], late: list[tuple[bytes, str]]
) -> None:
    server = shared_server()
    strangers = []
    for said in early:  # before and in place of a handshake
        stranger = socket.create_connection(server.address, 5.0)
        strangers.append(stranger)
        send_what_goes(stranger, said)
    connection, signer = proven(server)
    for body, fault in late:
        head = struct.pack(">I", len(body) + (1 << 30 if fault == "length" else 0))
        frame = signer.signed(head + body)
        if fault == "tag":
            frame = frame[:-1] + bytes([frame[-1] ^ 1])
        send_what_goes(connection, frame[: len(frame) // 2] if fault == "cut" else frame)
        if fault == "twice":
            send_what_goes(connection, frame)
    for said in ends:
        send_what_goes(connection, said)
    with StoreClient(server.address, KEY, 5.0, "rank 0") as client:
        client.set("alive/0", 1)
        assert client.get("alive/0", 1.0) == 1
        client.remove("")
    for each in (*strangers, connection):
        each.close()


def send_what_goes(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        pass  # it was dropped: as it should be


_servers: list[StoreServer] = []


def shared_server() -> StoreServer:
    if not _servers:
        _servers.append(StoreServer(KEY))
        _servers[0].start()
    return _servers[0]


ANSWERS: list[dict[str, Any]] = [
    {"id": 1, "ok": [True, 1]},
    {"id": 1, "ok": {"0": 1}},
    {"id": 1, "ok": 3},
    {"id": 1, "error": "aborted", "scope": "a/", "cause": CAUSE},
    {"id": 1, "error": "full", "text": "no"},
    {"id": 1, "error": "timeout", "present": ["0"], "waited_s": 1.0},
    {"event": "aborted", "scope": "a/", "cause": CAUSE},
]
answers = st.sampled_from(ANSWERS).flatmap(changed)


class Answering:
    """In place of a socket: what a server would say, whatever it was asked."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def settimeout(self, _: float) -> None: ...
    def setblocking(self, _: bool) -> None: ...
    def sendall(self, _: bytes) -> None: ...
    def recv(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def close(self) -> None: ...


@given(said=st.lists(answers, max_size=3), call=st.integers(0, 4))
def test_a_client_understands_a_server_or_says_that_it_does_not(said: list[Any], call: int) -> None:
    class Signs:
        tag_bytes = 0

        def signed(self, data: bytes) -> bytes:
            return data

        def right(self, *_: bytes) -> bool:
            return True

    data = b"".join(
        struct.pack(">I", len(body)) + body for body in (json.dumps(each).encode() for each in said)
    )
    client = StoreClient.__new__(StoreClient)
    client.identity, client.aborted = "rank 0", {}
    client._next_id, client._silent, client._arrived, client._where = 0, False, [], "there"
    client._reader = FrameReader(checker=Signs())
    client._signer = Signs()  # type: ignore[assignment]
    client._socket = Answering(data)  # type: ignore[assignment]
    try:
        if call == 0:
            assert isinstance(client.compare_and_set("a", None, 1)[0], bool)
        elif call == 1:
            assert isinstance(client.collect("a/", 2, 1.0), dict)
        elif call == 2:
            assert type(client.add("a")) is int
        elif call == 3:
            client.get("a", 1.0)
        else:
            client.pump()
    except HorovodError:
        pass  # one of ours: it says what the store said
