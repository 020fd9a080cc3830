"""What a client or a stranger may cost the store, and that nobody else notices."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from horovod.bootstrap.store import server as store_server
from horovod.bootstrap.store import table as table_module
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.messages import FrameError, FrameReader, encode
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import MOST_KEY_CHARACTERS, Cause, Table
from horovod.bootstrap.trust.handshake import HELLO_BYTES, REPLY_BYTES, Dialer, store_purpose
from horovod.bootstrap.trust.session import Signer
from horovod.errors import RendezvousError, StoreTimeout

KEY = bytes(range(32))
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(KEY) as running:
        yield running


def works(address: tuple[str, int], timeout_s: float = 10.0) -> bool:
    with StoreClient(address, KEY, timeout_s, "test") as fresh:
        return fresh.add("alive") > 0


class Known:
    """Somebody who has proved the key, and signs what it says."""

    def __init__(self, connection: socket.socket, signer: Signer) -> None:
        self.connection = connection
        self._signer = signer

    def say(self, frame: bytes) -> None:
        self.connection.sendall(self._signer.signed(frame))

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def authenticated(server: StoreServer) -> Known:
    connection = socket.create_connection(server.address, 5.0)
    dialer = Dialer(KEY, store_purpose(""))
    connection.sendall(dialer.hello)
    connection.sendall(dialer.answer(connection.recv(REPLY_BYTES, socket.MSG_WAITALL)))
    return Known(connection, dialer.session().signer())


def closed(connection: socket.socket) -> bool:
    connection.settimeout(10.0)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":1,"op":"collect","prefix":"a","count":1e999,"timeout_s":1}',
        b'{"id":1,"op":"collect","prefix":"a","count":-1e999,"timeout_s":1}',
        b'{"id":1,"op":"collect","prefix":"a","count":NaN,"timeout_s":1}',
        b'{"id":1,"op":"get","key":"a","timeout_s":NaN}',
        b'{"id":1,"op":"add","key":"a","amount":1e999}',
        b'{"id":1,"op":"add","key":"a","amount":"x"}',
        b'{"id":1,"op":"abort","scope":"a","cause":{"text":"t","missing":[1e999],"waited_s":0,"rank":1,"host":"a"}}',
        b'{"id":1,"op":"get","key":"' + b"k" * (MOST_KEY_CHARACTERS + 1) + b'","timeout_s":0}',
        b'{"id":1,"op":["set"],"key":"a","value":1}',
        b'{"id":1,"op":"set","key":"a","value":' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: body[:60].decode(),
)
def test_numbers_that_make_no_sense_cost_only_their_sender(server: StoreServer, body: bytes) -> None:
    with authenticated(server) as known:
        known.say(frame(body))
        assert closed(known.connection)
    assert works(server.address)


def test_a_value_nested_as_deeply_as_can_be_harms_nobody(server: StoreServer) -> None:
    """Somewhere between these depths reading still works and writing does not."""
    for depth in range(940, 1000, 4):
        value = b"[" * depth + b"]" * depth
        with authenticated(server) as known:
            known.say(frame(b'{"id":1,"op":"set","key":"deep","value":' + value + b"}"))
            known.say(frame(b'{"id":2,"op":"get","key":"deep","timeout_s":0}'))
            known.connection.settimeout(10.0)
            try:
                known.connection.recv(16)
            except ConnectionResetError:
                pass
    assert works(server.address)


def test_a_failure_of_the_table_costs_only_the_client_that_met_it(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(table_module._OPERATIONS, "add", fail)
    with authenticated(server) as known:
        known.say(encode({"id": 1, "op": "add", "key": "n", "amount": 1}))
        assert closed(known.connection)
    monkeypatch.undo()
    assert works(server.address)
    assert "a bug" in caplog.text


def test_strangers_that_hold_every_place_do_not_keep_a_rank_out() -> None:
    """Ten times as many as there are places, half of them in the middle of the handshake."""
    with StoreServer(KEY, handshake_timeout_s=60.0, max_strangers=32) as server, ExitStack() as held:
        hello = Dialer(b"somebody else's", store_purpose("")).hello
        for number in range(320):
            stranger = held.enter_context(socket.create_connection(server.address, 5.0))
            stranger.sendall(hello[: number % (HELLO_BYTES + 1)])
        began = time.monotonic()
        assert works(server.address)
        assert time.monotonic() - began < 20.0  # not the 60 s that each of them may take
        assert len(server._strangers) <= 32


def enter(connections: list[socket.socket], dialers: list[Dialer], replies: list[bytes]) -> None:
    """All prove the key, and count."""
    for connection, dialer, reply in zip(connections, dialers, replies, strict=True):
        proof, signer = dialer.answer(reply), dialer.session().signer()
        connection.sendall(proof + signer.signed(encode({"id": 1, "op": "add", "key": "n", "amount": 1})))
    for connection in connections:
        assert connection.recv(1) != b""


def test_a_crowd_that_knows_the_key_gets_in_though_each_is_slow() -> None:
    """Thousands of ranks come at once, and each may take its time to answer: none is pushed out by others."""
    with StoreServer(KEY, max_strangers=8) as server, ExitStack() as held:
        dialers = [Dialer(KEY, store_purpose("")) for _ in range(100)]
        crowd, replies = [], []
        for dialer in dialers:
            crowd.append(held.enter_context(socket.create_connection(server.address, 5.0)))
            crowd[-1].sendall(dialer.hello)
            replies.append(crowd[-1].recv(REPLY_BYTES, socket.MSG_WAITALL))
        enter(crowd, dialers, replies)
        with StoreClient(server.address, KEY, 5.0, "the last") as last:
            assert last.add("n") == len(crowd) + 1


def test_more_may_come_at_once_where_more_descriptors_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernels connect them at once, they speak when they get a core."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    with StoreServer(KEY) as server, ExitStack() as held:
        dialers = [Dialer(KEY, store_purpose("")) for _ in range(300)]
        crowd = [held.enter_context(socket.create_connection(server.address, 5.0)) for _ in dialers]
        assert works(server.address)  # all of them are accepted
        for connection, dialer in zip(crowd, dialers, strict=True):
            connection.sendall(dialer.hello)
        enter(crowd, dialers, [one.recv(REPLY_BYTES, socket.MSG_WAITALL) for one in crowd])


def test_hellos_that_somebody_has_recorded_do_not_take_all_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are right again where another job has the name and the key of an earlier one."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400, 400))
    monkeypatch.setattr(store_server, "_FEWEST_STRANGERS", 32)
    with StoreServer(KEY) as server, ExitStack() as held:
        for _ in range(250):
            recorded = held.enter_context(socket.create_connection(server.address, 5.0))
            recorded.sendall(Dialer(KEY, store_purpose("")).hello)
        assert works(server.address)
        assert len(server._strangers) <= 200


def test_a_list_of_who_is_there_that_is_too_long_costs_only_who_asks() -> None:
    with StoreServer(KEY) as server:
        with StoreClient(server.address, KEY, 5.0, "one") as one:
            for number in range(1400):
                one.set(f"{number:08}".ljust(MOST_KEY_CHARACTERS, "\U0001f600"), 0)
            with pytest.raises(RendezvousError, match="no room"):
                one.collect("", 2000, 0.1)
            assert one.get("0" * 8 + "\U0001f600" * (MOST_KEY_CHARACTERS - 8), 1.0) == 0
        assert works(server.address)


def test_an_order_that_a_full_table_cannot_follow_leaves_it_serving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StoreServer(KEY) as server:
        server._table._most_bytes = 5000
        with StoreClient(server.address, KEY, 5.0, "one") as one:
            one.set("big", "x" * 4000)
            server.put("more", "y" * 4000)
            assert one.get("big", 1.0) == "x" * 4000
            with pytest.raises(StoreTimeout):
                one.get("more", 0.0)
    assert "cannot do what this process wants" in caplog.text


def test_causes_count_as_what_the_table_holds() -> None:
    table = Table(most_bytes=100_000)
    refused = 0
    for number in range(10):
        cause = Cause("x" * 60_000)._asdict()
        table.request(1, {"id": 1, "op": "abort", "scope": f"{number}/", "cause": cause})
        refused += b'"full"' in table.replies.pop()[1][0]
    assert refused == 9


def test_thousands_who_waited_in_vain_are_told_in_time() -> None:
    """One list of who is there serves them all."""
    seconds = 0.0
    table = Table(lambda: seconds)
    for who in range(2000):
        table.request(who, {"id": 1, "op": "set", "key": f"ids/{who}", "value": {}})
        table.request(who, {"id": 2, "op": "collect", "prefix": "ids/", "count": 2001, "timeout_s": 1.0})
    table.replies.clear()
    seconds = 2.0
    table.expire()
    assert len(table.replies) == 2000
    assert len({id(frame[1]) for _, frame in table.replies}) == 1
    ((answer,),) = [list(FrameReader(inflates=True).feed(b"".join(table.replies[7][1])))]
    assert answer["id"] == 2
    assert answer["error"] == "timeout"
    assert len(answer["present"]) == 2000


def test_a_store_without_descriptors_serves_those_that_it_has() -> None:
    program = """
import os, resource, sys
from horovod.bootstrap.store.server import StoreServer
accept, attempts = StoreServer._accept, []
StoreServer._accept = lambda server, listener: (attempts.append(listener), accept(server, listener))[1]
with StoreServer(bytes(range(32)), max_strangers=10_000) as server:
    used = len(os.listdir("/proc/self/fd")) - 1  # but for the one that lists them
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 9, used + 9))
    print(*server.address, flush=True)
    sys.stdin.read()
    print(len(attempts))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            host, port = child.stdout.readline().split()
            address = (host, int(port))
            with StoreClient(address, KEY, 10.0, "known") as known, ExitStack() as held:
                for _ in range(40):
                    held.enter_context(socket.create_connection(address, 5.0))
                assert works(address)
                clients = [held.enter_context(StoreClient(address, KEY, 10.0, str(n))) for n in range(8)]
                assert known.add("n") == 1
                # All descriptors belong to clients: a knock in the backlog must not keep the server busy,
                # which would try to let it in with every request of others.
                held.enter_context(socket.create_connection(address, 5.0))
                for number in range(1000):
                    assert clients[0].add("n") == number + 2
            assert works(address)
            said, _ = child.communicate(timeout=20.0)
            attempts = int(said)
        finally:
            child.kill()
    assert attempts < 500


def test_answers_that_nobody_reads_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_server, "_MOST_UNREAD_BYTES", 1 << 20)
    with StoreServer(KEY) as server, authenticated(server) as known:
        known.say(encode({"id": 0, "op": "set", "key": "big", "value": "x" * (1 << 20)}))
        request = encode({"id": 1, "op": "get", "key": "big", "timeout_s": 0.0})
        known.connection.settimeout(20.0)
        asked = 0
        try:
            while asked < 100_000:
                known.say(request)
                asked += 1
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has closed: nobody takes the requests any more
        assert asked < 100_000
        assert works(server.address)


def test_a_full_table_refuses_and_takes_again_what_fits() -> None:
    table = Table(most_bytes=10_000)

    def ask(**request: object) -> dict[str, object]:
        table.request(1, {"id": 1, **request})
        answer: dict[str, object] = json.loads(b"".join(table.replies.pop()[1])[4:])
        return answer

    assert ask(op="set", key="a", value="x" * 8_000)["ok"] is None
    assert "10000 bytes are taken" in str(ask(op="set", key="b", value="x" * 8_000)["text"])
    assert ask(op="set", key="a", value="x")["ok"] is None
    assert ask(op="set", key="b", value="x" * 8_000)["ok"] is None
    assert ask(op="remove", prefix="")["ok"] is None
    assert table._bytes == 0


def test_a_full_store_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MOST_HELD", 2)
    with StoreServer(KEY) as server, StoreClient(server.address, KEY, 5.0, "many") as mine:
        mine.watch("a/", 0)
        mine.watch("b/", 0)
        with pytest.raises(RendezvousError, match="has no room: 2 requests"):
            mine.watch("c/", 0)
        mine.unwatch("a/")
        mine.watch("c/", 0)


def test_a_client_that_leaves_gives_back_what_it_held() -> None:
    table = Table()
    for number in range(5):
        table.request(1, {"id": number, "op": "get", "key": f"k{number}", "timeout_s": 9.0})
    table.request(2, {"id": 1, "op": "set", "key": "k0", "value": 1})
    assert table._held[1] == 4
    table.leave(1)
    assert table._held[1] == 0


def test_request_without_an_id_is_an_error_for_its_sender_alone() -> None:
    for message in ({}, {"id": True, "op": "set"}, {"id": 1}, {"id": 1, "op": "nothing"}):
        with pytest.raises(FrameError):
            Table().request(1, message)
