"""Long replies of the store: deflated, kept once for all who ask, and sent as fast as each reads."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from tests.unit.test_store import KEY, authenticated, client

from horovod.bootstrap.store import table as table_module
from horovod.bootstrap.store.connection import Outgoing
from horovod.bootstrap.store.messages import encode
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Table
from horovod.errors import RendezvousError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(KEY) as running:
        yield running


def test_collect_leaves_out_what_is_usual(server: StoreServer) -> None:
    with client(server) as first, client(server) as second, ThreadPoolExecutor(1) as pool:
        said: list[object] = ["", "it failed", "", [], None, 0]
        for rank, value in enumerate(said):
            first.set(f"outcome/{rank}", value)
        assert first.collect("outcome/", 6, 1.0, usual="") == {"1": "it failed", "3": [], "4": None, "5": 0}
        assert first.collect("outcome/", 6, 1.0, usual=[]).keys() == set("01245")
        assert first.collect("outcome/", 6, 1.0).keys() == set("012345")
        waits = pool.submit(second.collect, "outcome/", 8, 5.0, "")
        first.set("outcome/6", "")
        first.set("outcome/7", "late")
        assert waits.result().keys() == set("13457")


def test_nobody_can_have_many_replies_made_of_one_collection(server: StoreServer) -> None:
    """Each is made and kept by itself, for all who ask the same."""
    with client(server) as one, client(server) as other:
        for rank in range(9):
            one.set(f"said/{rank}", rank)
        for usual in [1, 2, 3, 4, 1, 2, 3, 4]:
            assert one.collect("said/", 9, 1.0, usual) == {str(r): r for r in range(9) if r != usual}
        with pytest.raises(RendezvousError, match="4 ways"):
            one.collect("said/", 9, 1.0, 5)
        assert other.collect("said/", 9, 1.0, 1).keys() == set("02345678")
        with pytest.raises(RendezvousError, match="lost the store"):
            one.collect("said/", 99, 1.0, "x" * 1000)
        assert other.get("said/0", 1.0) == 0


def test_a_book_that_changes_all_the_time_is_not_deflated_each_time() -> None:
    table = Table()
    for number in range(200):
        table.request(1, {"id": 1, "op": "set", "key": f"book/{number}", "value": "x" * 1000})
        table.replies.clear()
        table.request(1, {"id": 2, "op": "collect", "prefix": "book/", "count": 0, "timeout_s": 0.0})
        ((_, frame),) = table.replies
        assert sum(map(len, frame)) > number * 1000
    table.request(2, {"id": 1, "op": "collect", "prefix": "book/", "count": 0, "timeout_s": 0.0})
    assert sum(map(len, table.replies[-1][1])) < 20_000


def test_replies_that_nobody_waits_for_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MOST_KEPT_BYTES", 1 << 20)
    table = Table()
    table.request(1, {"id": 1, "op": "set", "key": "a" * 40, "value": os.urandom(1 << 17).hex()})
    for length in range(40):
        ask = {"op": "collect", "prefix": "a" * length, "count": 1, "timeout_s": 0.0}
        table.request(1, {"id": 2, **ask})
        table.request(1, {"id": 3, "usual": 0, **ask})
        table.replies.clear()
    assert 0 < sum(each.kept_bytes for each in table._collections.values()) <= 1 << 20


def test_small_answers_that_are_not_read_take_little_more_than_their_bytes() -> None:
    outgoing = Outgoing()
    tracemalloc.start()
    try:
        for _ in range(100_000):
            outgoing.add(b"\0\0\0\x16" + b'{"id":123456,"ok":', b"null", b"}", b"t" * 16)
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(outgoing) == 100_000 * 43
    assert held_bytes < 2 * len(outgoing)


def test_what_is_sent_piece_by_piece_comes_in_order_and_whole() -> None:
    random = Random(5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        outgoing, said, heard = Outgoing(), bytearray(), bytearray()
        for _ in range(400):
            pieces = [random.randbytes(random.choice([0, 1, 40, 4095, 4096, 70_000])) for _ in range(3)]
            outgoing.add(*pieces)
            said += b"".join(pieces)
            outgoing.send(ours)
            if outgoing and random.random() < 0.6:
                heard += theirs.recv(random.randint(1, 200_000))
        while outgoing:
            outgoing.send(ours)
            heard += theirs.recv(200_000)
        ours.close()
        while data := theirs.recv(200_000):
            heard += data
    assert heard == said


def book_of(size: int) -> dict[str, dict[str, object]]:
    return {str(rank): {"host": f"node-{rank // 8}", "pid": 30000 + rank} for rank in range(size)}


def test_a_long_book_travels_deflated_and_comes_whole(server: StoreServer) -> None:
    book = book_of(2000)
    with client(server) as one:
        for rank, value in book.items():
            one.set(f"book/{rank}", value)
        assert one.collect("book/", 2000, 5.0) == book
        assert one.collect("book/", 2000, 5.0) == book
    connection, signer = authenticated(server)
    with connection:
        connection.settimeout(5.0)
        request = {"id": 1, "op": "collect", "prefix": "book/", "count": 2000, "timeout_s": 1.0}
        connection.sendall(signer.signed(encode(request)))
        (length,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
        assert length >> 31 == 1
        assert length & 0x7FFFFFFF < len(json.dumps(book)) / 5


def test_a_book_is_kept_once_for_all_who_are_slow_to_read_it(server: StoreServer) -> None:
    """Else that of thousands of ranks, kept for thousands of ranks, ended the process that serves it."""
    slow, parts, part_bytes = 8, 16, 1 << 20
    with client(server) as one:
        for part in range(parts):
            one.set(f"book/{part}", os.urandom(part_bytes // 2).hex())
        for _ in range(2):  # whoever is the second has it deflated
            one.collect("book/", parts, 5.0)
        connections = [authenticated(server) for _ in range(slow)]
        tracemalloc.start()
        try:
            for connection, signer in connections:
                request = {"id": 1, "op": "collect", "prefix": "book/", "count": 1, "timeout_s": 1.0}
                connection.sendall(signer.signed(encode(request)))
            limit = time.monotonic() + 10.0
            while sum(bool(each.outgoing) for each in list(server._connections.values())) < slow:
                assert time.monotonic() < limit
                one.set("after", True)
            unread = sum(len(each.outgoing) for each in list(server._connections.values()))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            for connection, _ in connections:
                connection.close()
    assert unread > parts * part_bytes
    assert peak < 2 * part_bytes
