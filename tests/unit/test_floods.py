"""Somebody connects as fast as he can, while a rank or a store has work to do and a limit on its time."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from horovod.bootstrap.mesh import local
from horovod.bootstrap.network.listening import listen_at
from horovod.bootstrap.network.routes import Race, Route
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.admission import Admission, Refusals
from horovod.bootstrap.trust.conversation import Conversation, Conversations, dial
from horovod.bootstrap.trust.handshake import Purpose, Role
from horovod.bootstrap.trust.session import Session

pytestmark = pytest.mark.timeout(120)

KEY = bytes(range(32))
PURPOSE = Purpose(Role.LOCAL, 1, 0)
FLOOD_S = 40.0
SOON_S = 25.0
NOBODY = 65534
# Says that it has begun; ends after its time, or when its standard input does.
FLOOD = """
import os, select, socket, sys, time
user, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
if user:
    os.setuid(user)
unix = len(sys.argv) == 4
address = "\\0" + sys.argv[3] if unix else (sys.argv[3], int(sys.argv[4]))
family = socket.AF_UNIX if unix else socket.AF_INET
held, count = [], 0
while time.monotonic() < until and not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(256):
        one = socket.socket(family)
        try:
            one.setblocking(False)
            one.connect_ex(address)
            held.append(one)
        except OSError:
            one.close()
        if len(held) > 200:
            held.pop(0).close()
        count += 1
    if count == 4096:
        print("flooding", flush=True)
print(count)
"""


@contextmanager
def flood(*address: object, user: int = 0, processes: int = 2) -> Iterator[None]:
    """Two processes that connect as fast as they can."""
    words = [sys.executable, "-c", FLOOD, str(user), str(FLOOD_S), *map(str, address)]
    running = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        for child in running:
            assert child.stdout is not None
            assert child.stdout.readline() == "flooding\n"
        yield
    finally:
        for child in running:
            child.communicate(timeout=30.0)


@contextmanager
def pretending(user: int) -> Iterator[None]:
    """Who has no right to become another user plays the stranger by being another user himself."""
    with pytest.MonkeyPatch.context() as there:
        there.setattr(os, "geteuid", lambda: user)
        yield


@pytest.mark.skipif(os.geteuid() != 0, reason="a flood by another user needs a second user")
def test_another_user_who_floods_a_socket_of_a_rank_keeps_nobody_out() -> None:
    listener, name = local.listen()
    met: list[socket.socket] = []

    def meet(connection: socket.socket, _: Purpose, __: Session) -> Conversation[None]:
        met.append(connection)
        yield from ()

    def call() -> Conversation[None]:
        connection, _ = yield from dial(socket.AF_UNIX, "\0" + name, KEY, PURPOSE)
        met.append(connection)

    with listener, flood(name, user=NOBODY), Conversations() as talks:
        began = time.monotonic()
        Admission(talks, KEY, [PURPOSE], meet, "Rank 0").start([listener])
        talks.start(call())
        formed = talks.run(lambda: len(met) == 2, began + FLOOD_S)
        took_s = time.monotonic() - began
    for connection in met:
        connection.close()
    assert formed
    assert took_s < SOON_S


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_deadline_counts_while_strangers_come(kind: str) -> None:
    """Nobody who is expected comes: the wait ends when it should all the same."""
    if kind == "unix":
        listener, name = local.listen()
        address: tuple[object, ...] = (name,)
    else:
        (listener,) = listen_at(["127.0.0.1"])
        address = listener.getsockname()[:2]

    def never(_: socket.socket, __: Purpose, ___: Session) -> Conversation[None]:
        raise AssertionError("nobody has the key")

    with listener, flood(*address), Conversations() as talks:
        began = time.monotonic()
        Admission(talks, KEY, [PURPOSE], never, "Rank 0").start([listener])
        assert not talks.run(lambda: False, began + 1.0)
        assert time.monotonic() - began < 6.0


def test_a_flood_of_a_port_of_a_rank_keeps_nobody_out() -> None:
    (listener,) = listen_at(["127.0.0.1"])
    host, port = listener.getsockname()[:2]
    purpose = Purpose(Role.DATA, 1, 0)
    met: list[socket.socket] = []

    def meet(connection: socket.socket, _: Purpose, __: Session) -> Conversation[None]:
        met.append(connection)
        yield from ()

    def fail() -> None:
        raise AssertionError("given up")

    with listener, flood(host, port), Conversations() as talks:
        began = time.monotonic()
        Admission(talks, KEY, [purpose], meet, "Rank 0").start([listener])
        Race(talks, [Route(host, port)], KEY, purpose, lambda made, *_: met.append(made), fail).start()
        formed = talks.run(lambda: len(met) == 2, began + FLOOD_S)
        took_s = time.monotonic() - began
    for connection in met:
        connection.close()
    assert formed
    assert took_s < SOON_S


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_flood_of_the_store_keeps_nobody_out_and_disturbs_nobody_who_is_in(kind: str) -> None:
    where = unix.fresh_name() if kind == "unix" else "127.0.0.1"
    with (
        StoreServer(KEY, where) as server,
        StoreClient(server.address, KEY, 5.0, "inside") as inside,
        flood(*([where.removeprefix("@")] if kind == "unix" else server.address)),
    ):
        began = time.monotonic()
        for number in range(20):
            assert inside.add("n") == number + 1
        with StoreClient(server.address, KEY, FLOOD_S, "late") as late:
            assert late.add("n") == 21
        took_s = time.monotonic() - began
    assert took_s < SOON_S


def test_strangers_are_told_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals("Rank 3 on host b", lambda: now)
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            now = number * 0.05  # fifty seconds
            refusals.add("10.0.0.9", "no key")
        refusals.tell()
        refusals.tell()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "Rank 3 on host b turned a stranger away (10.0.0.9: no key). "
        "Somebody tries its ports, or a rank has another key.",
        "Rank 3 on host b turned 600 strangers away (the last from 10.0.0.9: no key). "
        "Somebody tries its ports, or a rank has another key.",
        "Rank 3 on host b turned 399 strangers away (the last from 10.0.0.9: no key). "
        "Somebody tries its ports, or a rank has another key.",
    ]


def test_the_store_says_how_many_it_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), StoreServer(KEY) as server:
        for _ in range(3):
            with socket.create_connection(server.address, 5.0) as stranger:
                stranger.sendall(secrets.token_bytes(4096))
                try:
                    assert stranger.recv(1) == b""
                except ConnectionResetError:
                    pass
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "turned a stranger away (127.0.0.1: " in said[0]
    assert "turned 2 strangers away" in said[1]


def test_another_user_is_told_apart_on_unix_sockets() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket() as other:
        assert unix.other_user(ours) is None
        assert unix.other_user(other) is None  # nothing is known of who connects by TCP
        with pretending(NOBODY):
            assert unix.other_user(ours) == os.getuid()
