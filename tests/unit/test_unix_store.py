"""The store of one machine: a socket, at which both sides look who the other one is. And a store with several
addresses: how long it listens where nobody comes.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from horovod.bootstrap.network.listening import namespace
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.errors import AuthenticationError, RendezvousError

pytestmark = pytest.mark.timeout(60)

KEY = bytes(range(32))
NOBODY = 65534
needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")


@contextmanager
def another_user(program: str, *words: str) -> Iterator[str]:
    """Runs ``program`` as another user until the block is left, with the right key; gives its first line."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import os, sys\n{program}", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        yield child.stdout.readline()
    finally:
        child.communicate(timeout=20.0)


def test_the_store_of_a_machine_has_no_port() -> None:
    name = unix.fresh_name()
    with StoreServer(KEY, name) as server, StoreClient(server.address, KEY, 5.0, "rank 1") as client:
        assert server.addresses == ((name, 0),)
        assert client.add("n") == 1
        assert client.local_host() == ""
        with pytest.raises(OSError, match="in use"):
            StoreServer(KEY, name)
    with pytest.raises(RendezvousError, match=r"No store answers rank 1 at @.*same network namespace\?"):
        StoreClient((name, 0), KEY, 0.2, "rank 1")


# What a client imports when it connects is imported before: the other user may not read this Python.
TRIES = """
import horovod.bootstrap.network.reaching
from horovod.bootstrap.store.client import StoreClient
os.setuid(int(sys.argv[2]))
try:
    StoreClient((sys.argv[1], 0), bytes(range(32)), 5.0, "stranger")
except Exception as error:
    print(type(error).__name__, error)
"""
SAYS_NOTHING = """
import socket
from horovod.bootstrap.trust.handshake import *
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as one:
    one.connect("\\0" + sys.argv[1][1:])
    one.settimeout(10.0)
    try:
        one.sendall(Dialer(bytes(range(32)), store_purpose("")).hello)
        print(len(one.recv(1)))
    except (ConnectionResetError, BrokenPipeError):
        print(0)
"""


@needs_two_users
def test_the_store_of_a_machine_answers_no_other_user_even_with_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StoreServer(KEY, unix.fresh_name()) as server:
        name = server.address[0]
        with another_user(SAYS_NOTHING, name, str(NOBODY)) as said:
            assert said == "0\n"
        with another_user(TRIES, name, str(NOBODY)) as said:
            assert said.startswith("AuthenticationError")
            assert "user 0 listens there" in said
        with another_user(SAYS_NOTHING, name, "0") as said:
            assert said == "1\n", "it is the user that was wrong"
    assert f"of user {NOBODY}: another user" in caplog.text


SERVES = """
from horovod.bootstrap.store.server import StoreServer
os.setuid(int(sys.argv[2]))
with StoreServer(bytes(range(32)), sys.argv[1]) as server:
    print("serving", flush=True)
    sys.stdin.read()
"""


@needs_two_users
def test_the_store_of_another_user_is_not_believed() -> None:
    name = unix.fresh_name()
    with another_user(SERVES, name, str(NOBODY)) as said:
        assert said == "serving\n"
        began = time.monotonic()
        with pytest.raises(AuthenticationError, match=f"@.*: user {NOBODY} listens there"):
            StoreClient((name, 0), KEY, 20.0, "rank 1")
        assert time.monotonic() - began < 10.0


def reached(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 5.0).close()
    except ConnectionRefusedError:
        return False
    return True


def test_when_all_have_come_a_store_listens_only_where_other_hosts_did() -> None:
    """What is connected to 127.0.0.1 comes from there, and to 127.0.0.2 from another address."""
    with StoreServer(KEY, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]) as server:
        here, there, nobody = server.addresses
        with (
            StoreClient(here, KEY, 5.0, "rank 0") as first,
            StoreClient(there, KEY, 5.0, "rank 1") as second,
            socket.create_connection(nobody, 5.0) as stranger,
        ):
            assert first.add("n") == 1
            assert second.add("n") == 2
            assert [reached(each) for each in server.addresses] == [True, True, True]
            server.narrow()
            assert first.add("n") == 3  # answered after that
            assert second.add("n") == 4
            assert [reached(each) for each in server.addresses] == [False, True, False]
            assert stranger.fileno() >= 0
        with StoreClient(server.addresses, KEY, 5.0, "rank 0 again") as again:
            assert again.add("n") == 5


def test_a_way_that_a_client_tried_and_did_not_take_is_not_kept() -> None:
    """A busy machine makes a client try its second address before the first has answered: both may."""
    with StoreServer(KEY, ["127.0.0.1", "127.0.0.2"]) as server:
        taken, tried = server.addresses
        with StoreClient(tried, KEY, 5.0, "rank 0"), StoreClient(taken, KEY, 5.0, "rank 0") as first:
            assert first.add("n") == 1
            server.narrow()
            assert first.add("n") == 2
            assert [reached(each) for each in server.addresses] == [True, False]


def test_a_store_that_only_its_own_host_uses_goes_on_to_listen_there() -> None:
    with StoreServer(KEY, ["127.0.0.1", "127.0.0.2"]) as server:
        server.narrow()
        with StoreClient(server.addresses, KEY, 5.0, "rank 0") as first:
            assert first.add("n") == 1
            assert [reached(each) for each in server.addresses] == [True, True], "nobody had come"
            server.narrow()
            assert first.add("n") == 2
            assert [reached(each) for each in server.addresses] == [True, False]


class RequestsFirst(selectors.DefaultSelector):
    """Tells of what clients ask before it tells of anything else, which it keeps back until they do."""

    keeps_back = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if self.keeps_back and not any(key.data for key, _ in ready):
            clients = [key.fd for key in self.get_map().values() if key.data]
            select.select(clients, [], [], 10.0)
            ready = super().select(0.0)
        return sorted(ready, key=lambda each: each[0].data is None)


def test_who_asks_after_a_store_was_told_to_listen_in_fewer_places_finds_it_done() -> None:
    server = StoreServer(KEY, ["127.0.0.1", "127.0.0.2"])
    server._selector = selector = RequestsFirst()
    seen: list[list[bool]] = []
    server.observe("asked", lambda *_: seen.append([reached(each) for each in server.addresses]))
    with server, StoreClient(server.addresses[0], KEY, 5.0, "rank 0") as first:
        first.add("asked")
        selector.keeps_back = True
        server.narrow()
        first.add("asked")
        selector.keeps_back = False
    assert seen == [[True, True], [True, False]]


def test_processes_of_one_network_namespace_know_it() -> None:
    shown = "from horovod.bootstrap.network.listening import namespace; print(namespace())"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, timeout=20.0)
    assert done.stdout == f"{namespace()}\n"


def test_a_reserved_address_is_opened_when_others_may_come() -> None:
    with StoreServer(KEY, ["127.0.0.1", "127.0.0.2"], reserved=["127.0.0.2"]) as server:
        here, there = server.addresses
        assert here[1] == there[1]
        with StoreClient([here], KEY, 5.0, "here") as client:
            client.set("a", 1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(there, 5.0)
            with pytest.raises(OSError, match="in use"):
                socket.create_server(there)  # nobody else gets the port
            for _ in range(2):
                server.widen()
            assert client.get("a", 5.0) == 1  # orders are obeyed before requests that come later
        with StoreClient([there], KEY, 5.0, "there") as client:
            assert client.get("a", 5.0) == 1
