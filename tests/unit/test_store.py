from __future__ import annotations

import gc
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.middle import Middle

from horovod.bootstrap.store import client as store_client
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.messages import MAX_FRAME_BYTES
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.bootstrap.trust.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    Acceptor,
    Dialer,
    Purpose,
    Role,
    store_purpose,
)
from horovod.bootstrap.trust.session import TAG_BYTES, Signer
from horovod.errors import AuthenticationError, RendezvousError, StoreTimeout

KEY = bytes(range(32))
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(KEY) as running:
        yield running


def client(server: StoreServer, identity: str = "test", key: bytes = KEY) -> StoreClient:
    return StoreClient(server.address, key, 5.0, identity)


def raw(server: StoreServer) -> socket.socket:
    return socket.create_connection(server.address, 5.0)


def read_until_closed(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(4096):
            received += data
    except ConnectionResetError:
        pass  # closed with our bytes unread: closed all the same
    return received


def works(server: StoreServer) -> bool:
    with client(server) as fresh:
        fresh.set("alive", [1, "x", None])
        return bool(fresh.get("alive", 1.0) == [1, "x", None])


def authenticated(server: StoreServer) -> tuple[socket.socket, Signer]:
    connection = raw(server)
    dialer = Dialer(KEY, store_purpose(""))
    connection.sendall(dialer.hello)
    reply = b""
    while len(reply) < REPLY_BYTES:
        reply += connection.recv(REPLY_BYTES - len(reply))
    connection.sendall(dialer.answer(reply))
    return connection, dialer.session().signer()


def test_values_survive_the_client_that_set_them(server: StoreServer) -> None:
    with client(server) as first:
        first.set("a", {"port": 1, "host": "ü"})
    with client(server) as second:
        assert second.get("a", 0.0) == {"port": 1, "host": "ü"}


def test_get_returns_as_soon_as_another_client_sets(server: StoreServer) -> None:
    with client(server) as waiter, client(server) as setter, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(waiter.get, "late", 10.0)
        setter.set("other", 1)
        assert not answer.done()
        setter.set("late", 2)
        assert answer.result(5.0) == 2


def test_get_time_out_names_the_key(server: StoreServer) -> None:
    with client(server) as waiter:
        with pytest.raises(StoreTimeout, match="'missing'") as caught:
            waiter.get("missing", 0.05)
        assert caught.value.keys == ("missing",)
        assert caught.value.waited_s == 0.05
        waiter.set("missing", 1)
        assert waiter.get("missing", 0.0) == 1


def test_collect_time_out_names_the_missing_keys(server: StoreServer) -> None:
    with client(server) as waiter:
        waiter.set("rank/1", "here")
        with pytest.raises(StoreTimeout, match="2 of 3 keys") as caught:
            waiter.collect("rank/", 3, 0.05)
        assert caught.value.keys == ("rank/0", "rank/2")


def test_compare_and_set_has_one_winner(server: StoreServer) -> None:
    clients = [client(server) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: clients[n].compare_and_set("leader", None, n), range(8)))
    winners = [value for swapped, value in results if swapped]
    assert len(winners) == 1
    assert {value for _, value in results} == set(winners)
    assert clients[0].compare_and_set("leader", winners[0], "next") == (True, "next")
    for each in clients:
        each.close()


def test_add_counts_every_client_once(server: StoreServer) -> None:
    def count(_: int) -> list[int]:
        with client(server) as mine:
            return [mine.add("n") for _ in range(20)]

    with ThreadPoolExecutor(5) as pool:
        seen = [number for numbers in pool.map(count, range(5)) for number in numbers]
    assert sorted(seen) == list(range(1, 101))


def test_collect_gives_everybody_the_whole_book(server: StoreServer) -> None:
    size = 40

    def join(rank: int) -> dict[str, int]:
        with client(server, f"rank {rank}") as mine:
            mine.set(f"world/{rank}", rank * 10)
            return mine.collect("world/", size, 10.0)

    with ThreadPoolExecutor(size) as pool:
        books = list(pool.map(join, range(size)))
    assert all(book == {str(rank): rank * 10 for rank in range(size)} for book in books)


def test_collect_sees_values_that_change_between_two_calls(server: StoreServer) -> None:
    with client(server) as mine:
        mine.set("p/0", "old")
        assert mine.collect("p/", 1, 1.0) == {"0": "old"}
        mine.set("p/0", "new")
        assert mine.collect("p/", 1, 1.0) == {"0": "new"}
        mine.remove("p/")
        with pytest.raises(StoreTimeout):
            mine.collect("p/", 1, 0.0)


def test_abort_fails_those_who_wait_and_those_who_come_later(server: StoreServer) -> None:
    with client(server) as waiter, client(server) as other, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(waiter.collect, "round/1/", 2, 10.0)
        other.abort("round/1", Cause("rank 3 has no memory", (3,), 1.5))
        other.abort("round/1", Cause("a consequence"))
        with pytest.raises(RendezvousError, match="no memory") as caught:
            answer.result(5.0)
        assert (caught.value.missing, caught.value.waited_s) == ((3,), 1.5)
        with pytest.raises(RendezvousError, match="no memory"):
            other.compare_and_set("round/1/x", None, 1)
        other.set("round/2/x", 1)


def test_loss_of_a_watching_client_aborts_its_scope(server: StoreServer) -> None:
    with (
        client(server) as waiter,
        client(server, "rank 7 on host b") as doomed,
        ThreadPoolExecutor(1) as pool,
    ):
        doomed.watch("round/1", 7)
        answer = pool.submit(waiter.get, "round/1/x", 10.0)
        doomed.close()
        with pytest.raises(RendezvousError, match="rank 7 on host b went away"):
            answer.result(5.0)


def test_client_that_has_unwatched_may_leave(server: StoreServer) -> None:
    with client(server) as waiter:
        with client(server) as leaver:
            leaver.watch("round/1", 3)
            leaver.unwatch("round/1")
        waiter.set("round/1/x", 1)
        assert waiter.get("round/1/x", 1.0) == 1


def test_abort_is_an_event_for_those_who_watch(server: StoreServer) -> None:
    with client(server) as watcher, client(server) as other:
        watcher.watch("round/1", 2)
        other.abort("round/1/group/0", Cause("no descriptors"))
        deadline = time.monotonic() + 5.0
        while not watcher.aborted and time.monotonic() < deadline:
            watcher.pump()
        assert watcher.aborted == {"round/1/group/0": Cause("no descriptors")}
        assert watcher.add("still works") == 1


def test_who_begins_to_watch_hears_of_earlier_aborts_at_once(server: StoreServer) -> None:
    with client(server) as late, client(server) as other:
        other.abort("round/1/group/0", Cause("no descriptors"))
        other.abort("round/2/group/0", Cause("of another round"))
        late.watch("round/1/", 4)
        assert late.aborted == {"round/1/group/0": Cause("no descriptors")}


def test_wrong_key_is_refused_and_said(server: StoreServer) -> None:
    with pytest.raises(AuthenticationError, match="HOROVOD_SECRET_KEY"):
        client(server, key=bytes(32))
    assert works(server)


def test_client_refuses_a_server_without_the_key() -> None:
    with StoreServer(bytes(32)) as impostor, pytest.raises(AuthenticationError):
        client(impostor)


def test_key_is_in_no_message(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    secret = b"do not tell this"
    with caplog.at_level("DEBUG"), pytest.raises(AuthenticationError) as caught:
        client(server, key=secret)
    for text in (str(caught.value), repr(caught.value), caplog.text):
        assert secret.decode() not in text
        assert secret.hex() not in text
        assert KEY.hex() not in text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
def test_garbage_closes_the_connection_and_harms_nobody(server: StoreServer, data: bytes) -> None:
    with raw(server) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        assert read_until_closed(stranger) == b""


def test_server_works_after_garbage(server: StoreServer) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"\xff" * 84, struct.pack(">I", 2**31)):
        with raw(server) as stranger:
            stranger.sendall(data + bytes(HELLO_BYTES))
            assert read_until_closed(stranger) == b""
    assert works(server)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(proof=st.binary(min_size=32, max_size=64))
def test_guessed_proof_is_refused_before_any_json_is_read(server: StoreServer, proof: bytes) -> None:
    """Of who has a hello that is right (recorded, and never used), and of who has not."""
    for key, answered in ((KEY, REPLY_BYTES), (b"guess", 0)):
        with raw(server) as stranger:
            stranger.sendall(Dialer(key, store_purpose("")).hello + proof + b"\0\0\0\2{}")
            assert len(read_until_closed(stranger)) == answered


def test_recorded_handshake_cannot_be_replayed(server: StoreServer) -> None:
    dialer = Dialer(KEY, store_purpose(""))
    with raw(server) as first:
        first.sendall(dialer.hello)
        proof = dialer.answer(first.recv(REPLY_BYTES, socket.MSG_WAITALL))
        request = json.dumps({"id": 1, "op": "add", "key": "n", "amount": 1}).encode()
        recorded = proof + dialer.session().signer().signed(struct.pack(">I", len(request)) + request)
        first.sendall(recorded)
        assert b'"ok":1' in first.recv(4096)
    with raw(server) as replay:
        replay.sendall(dialer.hello + recorded)
        assert read_until_closed(replay) == b""
    with client(server) as honest:
        assert honest.add("n") == 2


@pytest.mark.parametrize(
    "purpose",
    [
        Purpose(Role.DATA),
        replace(store_purpose(""), dialer=1),
        Purpose(Role.STORE),
        store_purpose("another job"),
    ],
)
def test_handshake_for_another_purpose_is_refused(server: StoreServer, purpose: Purpose) -> None:
    with raw(server) as stranger:
        stranger.sendall(Dialer(KEY, purpose).hello)
        assert read_until_closed(stranger) == b""


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        b"\0\0\0\x04nope",
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b"\0\0\0\x08" + b"[" * 8,
        struct.pack(">I", 100_000) + b"[" * 100_000,
        b'\0\0\0\x18{"id":1,"op":["unknown"]}'[:28],
        b'\0\0\0\x13{"id":"1","op":"x"}',
    ],
)
def test_bad_frame_of_an_authenticated_client_ends_only_its_connection(
    server: StoreServer, frame: bytes
) -> None:
    connection, signer = authenticated(server)
    with connection:
        connection.sendall(signer.signed(frame))
        assert read_until_closed(connection) == b""
    assert works(server)


def test_request_in_single_bytes_is_understood(server: StoreServer) -> None:
    request = json.dumps({"id": 1, "op": "add", "key": "n", "amount": 1}).encode()
    connection, signer = authenticated(server)
    with connection:
        for byte in signer.signed(struct.pack(">I", len(request)) + request):
            connection.sendall(bytes([byte]))
        assert b'"ok":1' in connection.recv(4096)


def test_the_only_request_of_a_client_that_is_gone_at_once_is_carried_out(server: StoreServer) -> None:
    request = json.dumps({"id": 1, "op": "set", "key": "why", "value": "I failed"}).encode()
    connection, signer = authenticated(server)
    assert works(server)
    busy, over = threading.Event(), threading.Event()

    def keep_busy(_: object) -> None:
        busy.set()
        over.wait(10.0)

    server._order(keep_busy)
    assert busy.wait(10.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the reset overtakes it
    connection.sendall(signer.signed(struct.pack(">I", len(request)) + request))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    over.set()
    with client(server) as other:
        assert other.get("why", 5.0) == "I failed"


def test_slow_stranger_is_closed_in_bounded_time() -> None:
    with StoreServer(KEY, handshake_timeout_s=0.2) as server, raw(server) as slow:
        slow.sendall(b"faran")
        began = time.monotonic()
        assert read_until_closed(slow) == b""
        assert 0.1 < time.monotonic() - began < 5.0
        assert works(server)


def test_strangers_cannot_take_every_place() -> None:
    with StoreServer(KEY, handshake_timeout_s=0.3, max_strangers=4) as server:
        known = client(server)
        strangers = [raw(server) for _ in range(12)]
        assert known.add("n") == 1  # who is in is not disturbed
        assert works(server)  # who comes gets a place when strangers are closed
        known.close()
        for stranger in strangers:
            stranger.close()


def test_server_that_is_not_there_is_named_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    began = time.monotonic()
    with pytest.raises(RendezvousError, match=f"rank 1 at 127.0.0.1:{address[1]}"):
        StoreClient(address, KEY, 0.3, "rank 1")
    assert time.monotonic() - began < 3.0


def test_client_waits_for_a_server_that_comes_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(StoreClient, address, KEY, 10.0, "rank 1")
        with StoreServer(KEY, *address):
            connected = coming.result(10.0)
            assert connected.add("n") == 1
            connected.close()


def test_end_of_the_server_is_an_error_for_those_who_wait(server: StoreServer) -> None:
    with client(server, "rank 2") as waiter, ThreadPoolExecutor(1) as pool:
        waiter.set("ready", 1)
        answer = pool.submit(waiter.get, "never", 20.0)
        server.stop()
        with pytest.raises(RendezvousError, match="rank 2 lost the store"):
            answer.result(10.0)


def test_server_leaves_no_thread_and_no_descriptor() -> None:
    gc.collect()  # what other tests have left behind may end meanwhile
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with StoreServer(KEY) as server, client(server) as mine:
            mine.set("a", 1)
        server.stop()
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_server_that_stops_serves_a_conversation_to_its_end(server: StoreServer) -> None:
    with ThreadPoolExecutor() as pool:
        late = client(server, "late")
        late.set("other", 0)  # past the handshake
        stopped = pool.submit(server.stop, 20.0)
        late.set("mine", 1)  # in the middle of its work when the server was told to stop
        assert late.get("mine", 1.0) == 1
        assert not stopped.done()
        late.close()
        stopped.result(5.0)


def test_server_that_stops_does_not_wait_for_those_who_wait_in_vain(server: StoreServer) -> None:
    with ThreadPoolExecutor() as pool, client(server, "in vain") as waiting:
        asked = pool.submit(waiting.get, "never", 20.0)
        until = time.monotonic() + 10.0
        while not server._table.waits(1):
            assert time.monotonic() < until
            time.sleep(0.001)
        begin = time.monotonic()
        server.stop(20.0)
        assert time.monotonic() - begin < 10.0
        with pytest.raises(RendezvousError, match="lost the store"):
            asked.result(5.0)


def test_server_that_stops_gives_up_in_bounded_time(server: StoreServer) -> None:
    with client(server, "stopped process") as silent:
        silent.set("mine", 1)
        begin = time.monotonic()
        server.stop(0.2)
        assert 0.2 <= time.monotonic() - begin < 10.0


def through(middle: Middle) -> StoreClient:
    return StoreClient(middle.address, KEY, 5.0, "rank 1 on host b")


def test_a_relay_that_changes_nothing_is_not_noticed(server: StoreServer) -> None:
    with Middle(server.address) as middle, through(middle) as mine:
        mine.set("address", "10.0.0.1")
        assert mine.get("address", 1.0) == "10.0.0.1"


def doubled(frames: bytes) -> bytes:
    return frames * 2


def flipped(frames: bytes) -> bytes:
    """In the last byte of the body: JSON still, but for the tag."""
    return frames[: -TAG_BYTES - 1] + b"]" + frames[-TAG_BYTES:]


@pytest.mark.parametrize(
    "change",
    [lambda frames: frames.replace(b"10.0.0.1", b"10.6.6.6"), doubled, flipped],
    ids=["changed", "repeated", "flipped"],
)
def test_an_answer_of_the_store_that_was_altered_on_the_way_is_not_used(
    server: StoreServer, change: Callable[[bytes], bytes]
) -> None:
    with client(server) as honest:
        honest.set("address", "10.0.0.1")
    with Middle(server.address) as middle, through(middle) as mine:
        middle.answers = lambda start, data: change(data) if start >= REPLY_BYTES else data
        seen = []

        def look() -> None:
            for _ in range(2):  # what is repeated is found out with the next answer
                seen.append(mine.get("address", 1.0))

        with pytest.raises(AuthenticationError, match=r"rank 1 on host b has lost the store at .*changed"):
            look()
    assert seen in ([], ["10.0.0.1"])
    assert works(server)


@pytest.mark.parametrize(
    "change",
    [lambda frames: frames.replace(b"10.0.0.1", b"10.6.6.6"), doubled, flipped],
    ids=["changed", "repeated", "flipped"],
)
def test_a_request_that_was_altered_on_the_way_is_not_followed(
    server: StoreServer, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with Middle(server.address) as middle, through(middle) as mine:
        said = HELLO_BYTES + PROOF_BYTES
        middle.requests = lambda start, data: change(data) if start >= said else data

        def speak() -> None:
            for number in range(2):
                mine.set("address", "10.0.0.1")
                mine.get("address", number)

        with pytest.raises(RendezvousError, match="altered on the way"):
            speak()
    assert "drops the connection from 127.0.0.1" in caplog.text
    with client(server) as honest:
        assert honest.collect("", 0, 0.0) in ({}, {"address": "10.0.0.1"})


def test_a_message_that_was_left_out_is_noticed_with_the_next(server: StoreServer) -> None:
    with Middle(server.address) as middle, through(middle) as mine:
        mine.add("n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_client, "_ANSWER_GRACE_S", 0.2)
            middle.requests = lambda start, data: b""
            with pytest.raises(RendezvousError, match="does not answer"):
                mine.add("n")
        middle.requests = lambda start, data: data
        mine._silent = False
        with pytest.raises(RendezvousError, match="altered on the way"):
            mine.add("n")
    with client(server) as honest:
        assert honest.add("n") == 2


def shaken() -> tuple[Dialer, Acceptor]:
    dialer = Dialer(KEY, store_purpose(""))
    acceptor = Acceptor(KEY, lambda _: True)
    acceptor.verify(dialer.answer(acceptor.reply(dialer.hello)))
    return dialer, acceptor


def test_each_connection_and_each_direction_has_its_own_keys() -> None:
    ends = [(dialer.session(), acceptor.session()) for dialer, acceptor in (shaken() for _ in range(2))]
    keys = [
        key
        for mine, other in ends
        for key in (mine.sending("x", 44), mine.receiving("x", 44), mine.sending("y", 44))
        if other.receiving("x", 44) == mine.sending("x", 44)
    ]
    assert len(set(keys)) == len(keys) == 6


def probes_s(port: int) -> list[float]:
    """When the sides of the connections with this port say something, if nothing else is said; those that
    never do, or have just said something, are left out. Source: proc(5), ``/proc/net/tcp``.
    """
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, timer, *_ = line.split()
        kind, _, ticks = timer.partition(":")
        if (state, kind) == ("01", "02") and f"{port:04X}" in (local[-4:], remote[-4:]):
            found.append(int(ticks, 16) / os.sysconf("SC_CLK_TCK"))
    return found


def test_a_connection_that_says_nothing_for_long_is_kept_alive(server: StoreServer) -> None:
    """Else a firewall may forget it, and a worker that waits would never hear its answer."""
    with client(server) as silent:
        silent.set("key", 1)
        deadline = time.monotonic() + 10.0
        while len(probes := probes_s(server.address[1])) < 2 or min(probes) < 1.0:
            assert time.monotonic() < deadline, probes
            time.sleep(0.05)  # nothing tells that what was said last has been acknowledged
        assert max(probes) <= 20.0
