from __future__ import annotations

import ipaddress
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from horovod.bootstrap.network.listening import listen_at
from horovod.bootstrap.network.routes import Race, Route, numeric_routes, resolve
from horovod.bootstrap.place.addresses import Address
from horovod.bootstrap.place.descriptors import make_room
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.admission import Admission
from horovod.bootstrap.trust.conversation import Conversation, Conversations
from horovod.bootstrap.trust.handshake import Purpose, Role
from horovod.bootstrap.trust.session import Session
from horovod.errors import AuthenticationError, BackendError, RendezvousError

KEY = bytes(range(32))
PURPOSE = Purpose(Role.DATA, 1, 0)
pytestmark = pytest.mark.timeout(30)


def mine(*hosts: str) -> list[Address]:
    return [Address(host, "eth", ipaddress.ip_network(f"{host}/24", strict=False)) for host in hosts]


def order(offered: list[str], own: list[Address], *, same_machine: bool = False) -> list[str]:
    routes = numeric_routes([(host, 1) for host in offered], own, same_machine=same_machine)
    return [route.host for route in routes]


def test_the_own_subnet_is_tried_first() -> None:
    assert order(["10.0.0.9", "10.1.0.9", "fd00::9"], mine("10.1.0.1")) == ["10.1.0.9", "10.0.0.9", "fd00::9"]


def test_numbers_that_mean_this_machine_lead_to_no_other() -> None:
    offered = ["127.0.0.1", "::1", "172.17.0.1", "10.0.0.9"]
    assert order(offered, mine("172.17.0.1", "10.0.0.1")) == ["10.0.0.9"]
    assert order(offered, mine("10.0.0.9"), same_machine=True)[:2] == ["127.0.0.1", "::1"]


def test_names_are_resolved_and_those_without_an_address_are_told() -> None:
    routes, unknown = resolve([("127.0.0.1", 7), ("localhost", 7), ("no.such.host.invalid", 7)])
    assert Route("127.0.0.1", 7, "127.0.0.1") in routes
    assert len({(route.host, route.port) for route in routes}) == len(routes)
    assert [route.host for route in unknown] == ["no.such.host.invalid"]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of 127.0.0.1 that answers no connection: its backlog is full."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        yield address[1]
        for filler in fillers:
            filler.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


class Meeting:
    """A race against an admission in one thread."""

    def __init__(self, routes: list[Route], listeners: list[socket.socket], key: bytes = KEY) -> None:
        self.let_in: list[socket.socket] = []
        self.won: list[tuple[socket.socket, Route, Session]] = []
        self.lost = False
        with Conversations() as talks:
            Admission(talks, KEY, [PURPOSE], self._answer, "test").start(listeners)
            self.race = Race(talks, routes, key, PURPOSE, lambda *won: self.won.append(won), self._lose)
            began = time.monotonic()
            self.race.start()
            both = len(listeners) and key == KEY
            self.in_time = talks.run(
                lambda: self.lost or bool(self.won and (self.let_in or not both)), began + 20.0
            )
            self.took_s = time.monotonic() - began

    def _answer(self, connection: socket.socket, purpose: Purpose, _: Session) -> Conversation[None]:
        assert purpose == PURPOSE
        self.let_in.append(connection)
        yield from ()

    def _lose(self) -> None:
        self.lost = True

    def close(self) -> None:
        for connection in [*self.let_in, *(won[0] for won in self.won)]:
            connection.close()


def test_a_silent_way_and_a_refusing_one_cost_a_moment(silent: int) -> None:
    (listener,) = listen_at(["127.0.0.1"])
    with listener:
        port = listener.getsockname()[1]
        ways = [Route("127.0.0.1", each) for each in (silent, free_port(), port)]
        with closing(Meeting(ways, [listener])) as met:
            assert met.won[0][1].port == port
            assert met.took_s < 5.0  # 50 ms on a machine with nothing else to do


def test_of_several_good_ways_exactly_one_is_used() -> None:
    listeners = listen_at(["127.0.0.1", "127.0.0.2"])
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    ways = [Route(*listener.getsockname()) for listener in listeners]
    with closing(Meeting(ways, listeners)) as met:
        assert len(met.won) == len(met.let_in) == 1
        met.won[0][0].setblocking(True)
        met.won[0][0].sendall(b"x")
        met.let_in[0].setblocking(True)
        assert met.let_in[0].recv(1) == b"x"
    for listener in listeners:
        listener.close()


def test_whoever_does_not_know_the_key_is_passed_over() -> None:
    other = StoreServer(bytes(32))
    with other, StoreServer(KEY) as store:
        with StoreClient([other.address, store.address], KEY, 10.0, "rank 1") as client:
            assert client.add("n") == 1
        with pytest.raises(AuthenticationError, match=f"127.0.0.1:{other.address[1]}: .*it has another key"):
            StoreClient([other.address, ("127.0.0.1", free_port())], KEY, 20.0, "rank 1")


def test_all_ways_fail_with_a_reason_for_each(silent: int) -> None:
    refusing = free_port()
    with closing(Meeting([Route("127.0.0.1", refusing), Route("::1", refusing)], [])) as met:
        assert met.lost
        assert f"127.0.0.1:{refusing}: " in met.race.describe()
        assert f"[::1]:{refusing}: " in met.race.describe()
    began = time.monotonic()
    with pytest.raises(
        RendezvousError, match=f"127.0.0.1:{silent}: no answer; 127.0.0.1:{refusing}: .*refused"
    ):
        StoreClient([("127.0.0.1", silent), ("127.0.0.1", refusing)], KEY, 0.5, "rank 1")
    assert time.monotonic() - began < 10.0


def test_a_store_on_several_addresses_has_one_port() -> None:
    with StoreServer(KEY, ["127.0.0.1", "127.0.0.2"]) as server:
        assert [host for host, _ in server.addresses] == ["127.0.0.1", "127.0.0.2"]
        for address in server.addresses:
            with StoreClient(address, KEY, 5.0, "rank 1") as client:
                client.set("x", 1)
        assert server.address == server.addresses[0]


def test_a_port_that_is_taken_on_one_address_is_not_chosen() -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen_at(["127.0.0.1", "127.0.0.2"], port)


def test_the_limit_of_open_files_is_raised_or_its_lack_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (256, 2000)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    make_room(10, "x")
    assert limits["now"] == (256, 2000)
    make_room(1000, "x")
    assert 1128 < limits["now"][0] < 1500
    limits["now"] = (64, 1000 + len(os.listdir("/proc/self/fd")) + 32)
    make_room(1000, "x")  # what is needed is there, though nothing is left for the program
    assert limits["now"][0] == limits["now"][1]
    limits["now"] = (256, 2000)
    with pytest.raises(
        BackendError, match=r"rank 7: all of them needs about \d+ open files .* may have 2000"
    ):
        make_room(2000, "rank 7: all of them")


def test_all_expected_ranks_may_come_at_once_beside_strangers() -> None:
    (listener,) = listen_at(["127.0.0.1"])
    address = listener.getsockname()
    purposes = [Purpose(Role.DATA, rank, 0) for rank in range(1, 301)]
    came: list[socket.socket] = []
    won: list[socket.socket] = []

    def answer(connection: socket.socket, _: Purpose, session: Session) -> Conversation[None]:
        came.append(connection)
        yield from ()

    with listener, Conversations() as talks:
        strangers = [socket.create_connection(address) for _ in range(20)]
        routes = [Route(*address)]
        for purpose in purposes:
            Race(talks, routes, KEY, purpose, lambda made, *_: won.append(made), pytest.fail).start()
        Admission(talks, KEY, purposes, answer, "test").start([listener])
        assert talks.run(lambda: len(came) == len(won) == len(purposes), time.monotonic() + 20.0)
        for each in [*came, *won, *strangers]:
            each.close()
