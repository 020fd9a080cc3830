"""Connections that are made when an operation needs them: who dials, what the engine is given, what it is
told if one cannot be made, and what strangers find.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.held import held, left_since

from horovod.bootstrap.mesh import late_connections as late_module
from horovod.bootstrap.mesh.late_connections import LateConnections, left_s
from horovod.bootstrap.mesh.others import Others
from horovod.bootstrap.trust.conversation import Conversation, Conversations
from horovod.bootstrap.trust.handshake import HELLO_BYTES, PROOF_BYTES, Acceptor, Dialer, Purpose, Role
from horovod.config import Config
from horovod.errors import ConfigError

KEY = secrets.token_bytes(32)
WORLD = b"w" * 32
pytestmark = pytest.mark.timeout(60)


class FakeEngine:
    """What an engine asks for and is given, one rank's."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.asked: list[int] = []
        self.given: dict[int, tuple[list[int], int, list[bytes]]] = {}
        self.refused: dict[int, str] = {}
        self.covered: list[int] = []
        self.changed = threading.Condition()
        self.broken = False

    def ask(self, rank: int) -> None:
        self.asked.append(rank)
        os.eventfd_write(self.bell, 1)

    def wanted_bell(self) -> int:
        return self.bell

    def wanted_connections(self) -> list[int]:
        os.eventfd_read(self.bell)
        if self.broken:
            raise RuntimeError("broken on purpose")
        asked, self.asked = self.asked, []
        return asked

    def add_connections(self, rank: int, data: list[int], protection: int, keys: list[bytes]) -> None:
        with self.changed:
            assert rank not in self.given
            self.given[rank] = data, protection, keys
            self.changed.notify_all()

    def refuse_connections(self, rank: int, reason: str) -> None:
        with self.changed:
            self.refused[rank] = reason
            self.changed.notify_all()

    def cover(self, descriptor: int) -> None:
        self.covered.append(descriptor)

    def uncover(self, descriptor: int) -> None:
        self.covered.remove(descriptor)

    def wait(self, until: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(until, 20.0)

    def close(self) -> None:
        os.close(self.bell)
        for data, _, _ in self.given.values():
            for descriptor in data:
                os.close(descriptor)


def identity(protection: str) -> dict[str, Any]:
    return {
        "place": {"host": "here"},
        "machine": {"boot_id": "b", "net_namespace": 1},
        "addresses": ["127.0.0.1"],
        "protection": protection,
        "missing_cipher": "",
    }


class Ranks:
    """``size`` ranks, each alone, none of them connected with another."""

    def __init__(
        self,
        size: int,
        streams: int = 1,
        protection: str = "off",
        limit_s: float = 20.0,
        key_of: Callable[[int], bytes] = lambda _: KEY,
        through: Callable[[socket.socket], Any] = lambda listener: listener,
    ) -> None:
        others = [Others(rank, Config(), [identity(protection)] * size) for rank in range(size)]
        listeners = [others[rank].listen(range(rank + 1, size)) for rank in range(size)]
        self.addresses: list[list[tuple[str, int]]] = [
            [(listener.getsockname()[0], listener.getsockname()[1]) for listener in own] for own in listeners
        ]
        self.engines = [FakeEngine() for _ in range(size)]
        self.late = [
            LateConnections(
                rank,
                [
                    Purpose(Role.DATA, max(rank, other), min(rank, other), index, WORLD)
                    for other in range(size)
                    if other != rank
                    for index in range(streams)
                ],
                [through(listener) for listener in listeners[rank]],
                self.addresses,
                others[rank],
                key_of(rank),
                limit_s,
            )
            for rank in range(size)
        ]

    def start(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.late)):
            self.late[rank].start(self.engines[rank])

    def close(self) -> None:
        for each in self.late:
            each.close()
        for engine in self.engines:
            assert engine.covered == []
            engine.close()


@contextlib.contextmanager
def ranks(*arguments: Any, started: bool = True, **named: Any) -> Iterator[Ranks]:
    before = held()
    world = Ranks(*arguments, **named)
    try:
        if started:
            world.start()
        yield world
    finally:
        world.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "horovod-connect"]
    assert not left_since(before)


def assert_linked(one: int, other: int) -> None:
    assert not os.get_inheritable(one)
    os.write(one, b"word")
    with selectors.DefaultSelector() as waiting:
        waiting.register(other, selectors.EVENT_READ)
        assert waiting.select(5.0)
    assert os.read(other, 100) == b"word"


def wait_for_descriptors(count: int) -> list[int]:
    """Those of all threads that make connections: of each its epoll, two events, and what it accepts or
    dials.
    """
    until = time.monotonic() + 10.0
    while True:
        found = [each for service in list(late_module._services) for each in service.descriptors()]
        if len(found) >= count:
            return found
        assert time.monotonic() < until
        time.sleep(0.01)


def wait_until_closed(address: tuple[str, int]) -> None:
    """Nobody listens there any more."""
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError(f"somebody listens at {address}")


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize(("protection", "level"), [("off", 0), ("integrity", 1), ("full", 2)])
def test_the_higher_rank_dials_when_it_is_asked(streams: int, protection: str, level: int) -> None:
    with ranks(3, streams, protection) as world:
        low, high = world.engines[0], world.engines[2]
        high.ask(0)
        low.wait(lambda: 2 in low.given)
        high.wait(lambda: 0 in high.given)
        (ours, our_level, our_keys), (theirs, their_level, their_keys) = high.given[0], low.given[2]
        assert our_level == their_level == level
        assert len(ours) == len(theirs) == streams
        assert len(our_keys) == len(their_keys) == (streams if level else 0)
        for one, other in zip(ours, theirs, strict=True):
            assert_linked(one, other)
        for one_key, other_key in zip(our_keys, their_keys, strict=True):
            assert (one_key[:44], one_key[44:]) == (other_key[44:], other_key[:44])
        assert not world.engines[1].given


def test_the_lower_rank_waits_for_the_higher_one() -> None:
    with ranks(2) as world:
        low, high = world.engines
        low.ask(1)
        high.ask(0)
        low.wait(lambda: 1 in low.given)
        high.wait(lambda: 0 in high.given)


def test_all_pairs_at_once() -> None:
    size = 8
    with ranks(size) as world:
        for rank, engine in enumerate(world.engines):
            for other in range(size):
                if other != rank:
                    engine.ask(other)
        for engine in world.engines:
            engine.wait(lambda engine=engine: len(engine.given) == size - 1)  # type: ignore[misc]
            assert not engine.refused
        for rank in range(size):
            for other in range(rank):
                assert_linked(world.engines[rank].given[other][0][0], world.engines[other].given[rank][0][0])


def test_a_rank_that_is_not_ready_is_waited_for() -> None:
    with ranks(2, started=False) as world:
        world.start(1)
        high = world.engines[1]
        high.ask(0)
        wait_for_descriptors(4)  # it is connected in the kernel, and waits for an answer
        assert not high.given
        assert not high.refused
        world.start(0)
        high.wait(lambda: 0 in high.given)


def test_a_rank_that_cannot_be_reached_is_named_with_what_was_tried() -> None:
    with ranks(3, limit_s=3.0) as world:
        world.late[0].close()
        high = world.engines[2]
        high.ask(0)
        high.wait(lambda: 0 in high.refused)
        host, port = world.addresses[0][0]
        text = high.refused[0]
        assert text.startswith(f"Rank 2 on host here cannot connect to rank 0 on host here at {host}:{port}")
        assert "refused" in text
        assert "firewall" in text
        high.ask(1)  # the others are reached as before
        high.wait(lambda: 1 in high.given)


@pytest.mark.parametrize(
    ("now", "last_kept", "left"),
    [
        (100.0, 0.0, 10.0),  # nothing since
        (104.0, 103.0, 9.0),
        (112.0, 103.0, 1.0),  # others come, so this one may be late
        (113.0, 103.0, 0.0),
        (149.0, 149.0, 1.0),  # but not for ever
        (150.0, 150.0, 0.0),
    ],
)
def test_the_limit_begins_anew_with_each_connection(now: float, last_kept: float, left: float) -> None:
    assert left_s(now, 100.0, last_kept, 10.0) == left


def test_another_key_is_refused_before_the_limit() -> None:
    with ranks(2, key_of=lambda rank: KEY if rank else secrets.token_bytes(32)) as world:
        high = world.engines[1]
        high.ask(0)
        high.wait(lambda: 0 in high.refused)
        assert "another key" in high.refused[0]


def test_strangers_get_nothing_and_keep_nobody_out() -> None:
    with ranks(2) as world:
        address = world.addresses[0][0]
        wrong = [
            b"GET / HTTP/1.0\r\n\r\n" * 20,
            Dialer(KEY, Purpose(Role.DATA, 1, 0, 0, b"v" * 32)).hello,  # of another world
            Dialer(KEY, Purpose(Role.DATA, 2, 0, 0, WORLD)).hello,  # a rank that is not of it
            Dialer(KEY, Purpose(Role.CONTROL, 1, 0, 0, WORLD)).hello,
            Dialer(secrets.token_bytes(32), Purpose(Role.DATA, 1, 0, 0, WORLD)).hello,
        ]
        with contextlib.ExitStack() as open_ones:
            for _ in range(400):  # more than there are places for
                open_ones.enter_context(socket.create_connection(address))
            for words in wrong:
                with socket.create_connection(address) as stranger:
                    stranger.settimeout(10.0)
                    stranger.sendall(words)
                    with contextlib.suppress(ConnectionResetError):
                        assert stranger.recv(100) == b""
            high = world.engines[1]
            high.ask(0)
            high.wait(lambda: 0 in high.given)
            assert not high.refused


class LacksDescriptors:
    """A listener of a process that has none left each time that it has accepted somebody."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.accepted = False

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepted = not self.accepted
        if not self.accepted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.listener.accept()

    def fileno(self) -> int:
        return self.listener.fileno()

    def close(self) -> None:
        self.listener.close()


def test_a_lack_of_descriptors_drops_nobody_who_was_let_in(caplog: pytest.LogCaptureFixture) -> None:
    with ranks(12, through=LacksDescriptors) as world:
        low = world.engines[0]
        for engine in world.engines[1:]:
            engine.ask(0)
        low.wait(lambda: len(low.given) == 11)
        for other in range(1, 12):
            world.engines[other].wait(lambda other=other: 0 in world.engines[other].given)  # type: ignore[misc]
            assert_linked(world.engines[other].given[0][0][0], low.given[other][0][0])
    assert (
        "Rank 0 on host here cannot accept connections of other ranks for now: Too many open files"
        in caplog.text
    )


def test_whoever_was_dropped_after_the_handshake_dials_again() -> None:
    """Another one plays rank 0: it lets the connection in, and closes it twice before it says so."""
    with ranks(2, started=False) as world:
        listener = socket.create_server(("127.0.0.1", 0))
        world.addresses[0][:] = [("127.0.0.1", listener.getsockname()[1])]
        world.start(1)
        high = world.engines[1]
        high.ask(0)
        with listener:
            for turn in range(3):
                connection, _ = listener.accept()
                acceptor = Acceptor(KEY, lambda _: True)
                connection.sendall(acceptor.reply(connection.recv(HELLO_BYTES, socket.MSG_WAITALL)))
                acceptor.verify(connection.recv(PROOF_BYTES, socket.MSG_WAITALL))
                if turn == 2:
                    connection.sendall(b"\1")
                    high.wait(lambda: 0 in high.given)
                    assert_linked(high.given[0][0][0], connection.fileno())
                connection.close()


def test_once_all_have_come_nobody_listens() -> None:
    with ranks(3) as world:
        for other in (1, 2):
            world.engines[other].ask(0)
        world.engines[0].wait(lambda: len(world.engines[0].given) == 2)
        wait_until_closed(world.addresses[0][0])
        assert world.engines[0].covered == []


def test_limits_of_those_that_have_gone_take_no_memory() -> None:
    def short() -> Conversation[None]:
        yield from ()

    with Conversations() as talks:
        for _ in range(10_000):
            talks.start(short(), 60.0)
        assert len(talks._timers) < 200


def test_a_forked_child_holds_no_connection_that_is_being_made() -> None:
    with ranks(3, started=False) as world:
        world.start(1, 2)  # nobody answers at rank 0
        for other in (1, 2):
            world.engines[other].ask(0)
        found = wait_for_descriptors(9)  # each dials one; rank 1 has a listener
        child = os.fork()
        if child == 0:
            os._exit(sum(os.readlink(f"/proc/self/fd/{each}") != os.devnull for each in found))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        world.start(0)  # the parent goes on
        world.engines[0].wait(lambda: len(world.engines[0].given) == 2)


def test_a_thread_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ranks(2, started=False) as world:
        with monkeypatch.context() as there:
            there.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                world.start(0)
        assert world.engines[0].covered == []
        world.late[0].close()


def test_what_is_connected_already_is_not_accepted_again() -> None:
    with ranks(3) as world:
        high = world.engines[1]
        high.ask(0)
        high.wait(lambda: 0 in high.given)
        with socket.create_connection(world.addresses[0][0]) as again:
            again.settimeout(10.0)
            again.sendall(Dialer(KEY, Purpose(Role.DATA, 1, 0, 0, WORLD)).hello)
            with contextlib.suppress(ConnectionResetError):
                assert again.recv(100) == b""


def test_what_ends_the_thread_is_told_to_whoever_waits() -> None:
    with ranks(3) as world:
        engine = world.engines[1]
        engine.broken = True
        engine.ask(0)
        engine.wait(lambda: len(engine.refused) == 2)
        assert "broken on purpose" in engine.refused[0]
        wait_until_closed(world.addresses[1][0])  # whoever dials need not wait
        assert engine.covered == []


def test_it_ends_while_a_connection_is_being_made() -> None:
    """The other side accepts in the kernel only."""
    with ranks(2, started=False) as world:
        world.start(1)
        world.engines[1].ask(0)
        wait_for_descriptors(4)
        began = time.monotonic()
        world.late[1].close()
        assert time.monotonic() - began < 5.0
        world.late[1].close()


def test_settings_that_differ_are_an_error() -> None:
    said = [identity("off") | {"connect_all": 1}, identity("off") | {"connect_all": 2}]
    with pytest.raises(
        ConfigError, match="HOROVOD_NETWORK_CONNECT_ALL is 2 for rank 1 on host here and 1 for"
    ):
        Others(0, Config(), said).agreed("connect_all", "HOROVOD_NETWORK_CONNECT_ALL")
