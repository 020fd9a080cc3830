from __future__ import annotations

import array
import errno
import mmap
import os
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from horovod.bootstrap.mesh import connecting as mesh
from horovod.bootstrap.mesh import local
from horovod.bootstrap.mesh.connecting import connect
from horovod.bootstrap.mesh.connections import Mesh, NetworkPeer
from horovod.bootstrap.network import listening as network
from horovod.bootstrap.place.descriptors import Descriptors
from horovod.bootstrap.place.topology import RankPlace, Topology
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.bootstrap.trust.handshake import Dialer, Purpose, Role
from horovod.bootstrap.trust.session import TAG_BYTES, Session
from horovod.config import Config
from horovod.errors import BackendError, ConfigError, HorovodError, InvalidArgumentError, RendezvousError

KEY = secrets.token_bytes(32)
SEGMENT_BYTES = 1 << 16
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(KEY, job="job") as running:
        yield running


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # the store's fixture may still be open
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPool")]


def place(server: StoreServer, rank: int, size: int) -> RankPlace:
    return RankPlace("test", rank, size, None, None, "here", server.addresses)


def settings(mode: str = "auto", timeout_s: float = 20.0) -> Config:
    return replace(Config(), transport_groups=mode, job_id="job", init_timeout_s=timeout_s)


def start_all(
    pool: ThreadPoolExecutor, server: StoreServer, configs: list[Config], ranks: list[int] | None = None
) -> list[Future[tuple[Topology, Mesh]]]:
    size = len(configs)
    return [
        pool.submit(connect, place(server, rank, size), configs[rank], KEY, lambda _: SEGMENT_BYTES)
        for rank in (range(size) if ranks is None else ranks)
    ]


def form(server: StoreServer, configs: list[Config]) -> list[tuple[Topology, Mesh]]:
    with ThreadPoolExecutor(len(configs)) as pool:
        return [future.result(30.0) for future in start_all(pool, server, configs)]


def failures(futures: list[Future[tuple[Topology, Mesh]]]) -> list[HorovodError]:
    wait(futures, 30.0)
    found = []
    for future in futures:
        error = future.exception(0.0)
        assert isinstance(error, HorovodError), error
        found.append(error)
    return found


def close(meshes: list[tuple[Topology, Mesh]]) -> None:
    for _, each in meshes:
        each.close()


def assert_connected(meshes: list[tuple[Topology, Mesh]]) -> None:
    """Every pair of ranks shares what it should, and each socket leads to its namesake on the other side."""
    for rank, (topology, mine) in enumerate(meshes):
        assert topology.rank == rank
        assert mine.groups == meshes[0][1].groups
        group = next(group for group in mine.groups if rank in group)
        assert [peer.rank for peer in mine.local_peers] == [r for r in group if r != rank]
        assert [peer.rank for peer in mine.network_peers] == [r for r in range(len(meshes)) if r not in group]
        for peer in mine.local_peers:
            theirs = meshes[peer.rank][1].own
            assert theirs is not None
            for received, sent in ((peer.memfd, theirs.memfd), (peer.engine_bell, theirs.engine_bell)):
                assert os.fstat(received).st_ino == os.fstat(sent).st_ino
            assert_same_bell(theirs.engine_bell, peer.engine_bell)
            assert_same_bell(theirs.waiter_bell, peer.waiter_bell)
            back = next(p for p in meshes[peer.rank][1].local_peers if p.rank == rank)
            assert_linked(peer.liveness, back.liveness)
        for other in mine.network_peers:
            back_net = next(p for p in meshes[other.rank][1].network_peers if p.rank == rank)
            assert len(other.data) == 1
            assert_linked(other.data[0], back_net.data[0])
            assert (other.control >= 0) is (back_net.control >= 0)
            if other.control >= 0:
                assert_linked(other.control, back_net.control)


def assert_same_bell(ours: int, theirs: int) -> None:
    os.eventfd_write(theirs, 5)
    assert os.eventfd_read(ours) == 5


def assert_linked(one: int, other: int) -> None:
    assert not os.get_blocking(one)
    assert not os.get_inheritable(one)
    word = secrets.token_bytes(8)
    os.write(one, word)
    assert select.select([other], [], [], 5.0)[0]
    assert os.read(other, 100) == word


def _edge(peer: NetworkPeer) -> int | None:
    return peer.rank if peer.control >= 0 else None


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_of_one_machine_share_memory(server: StoreServer, size: int) -> None:
    meshes = form(server, [settings()] * size)
    assert meshes[0][1].groups == [list(range(size))]
    assert_connected(meshes)
    close(meshes)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_single_ranks_connect_over_tcp(server: StoreServer, size: int) -> None:
    meshes = form(server, [settings("single")] * size)
    assert meshes[0][1].groups == [[rank] for rank in range(size)]
    assert_connected(meshes)
    for _, each in meshes[1:]:
        assert [peer.rank for peer in each.network_peers if peer.control >= 0] == [0]
        data = socket.socket(fileno=os.dup(each.network_peers[0].data[0]))
        assert data.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not data.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert data.getsockname()[0] == "127.0.0.1"
        data.close()
    close(meshes)


def test_several_streams_come_in_the_same_order_on_both_ends(server: StoreServer) -> None:
    meshes = form(server, [replace(settings("single"), network_streams=3)] * 3)
    for rank, (_, mine) in enumerate(meshes):
        for peer in mine.network_peers:
            back = next(p for p in meshes[peer.rank][1].network_peers if p.rank == rank)
            assert len(peer.data) == 3
            for ours, theirs in zip(peer.data, back.data, strict=True):
                assert_linked(ours, theirs)
    close(meshes)


def test_different_numbers_of_streams_are_an_error_that_names_both(server: StoreServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        configs = [replace(settings("single"), network_streams=count) for count in (2, 1)]
        errors = failures(start_all(pool, server, configs))
    told = [str(error) for error in errors]
    assert any(
        "HOROVOD_NETWORK_STREAMS is" in text and "rank 0 on" in text and "rank 1 on" in text for text in told
    ), told


def test_groups_and_network_mix(server: StoreServer) -> None:
    modes = ["launcher", "single", "launcher", "auto", "auto", "single"]
    meshes = form(server, [settings(mode) for mode in modes])
    assert meshes[0][1].groups == [[0, 2], [1], [3, 4], [5]]
    assert_connected(meshes)
    edges = {
        (rank, peer.rank)
        for rank, (_, m) in enumerate(meshes)
        for peer in m.network_peers
        if peer.control >= 0
    }
    assert edges == {(0, 1), (1, 0), (0, 3), (3, 0), (0, 5), (5, 0)}
    close(meshes)


def test_segment_is_reserved_sealed_and_of_the_agreed_size(server: StoreServer) -> None:
    meshes = form(server, [settings()] * 2)
    peer = meshes[0][1].local_peers[0]
    assert os.fstat(peer.memfd).st_size == SEGMENT_BYTES
    assert os.fstat(peer.memfd).st_blocks * 512 >= SEGMENT_BYTES
    with pytest.raises(PermissionError):
        os.ftruncate(peer.memfd, 0)
    with mmap.mmap(peer.memfd, SEGMENT_BYTES) as theirs:
        theirs[10] = 42
    own = meshes[1][1].own
    assert own is not None
    with mmap.mmap(own.memfd, SEGMENT_BYTES) as ours:
        assert ours[10] == 42
    close(meshes)


def test_topology_comes_from_the_launcher_not_from_the_transport(server: StoreServer) -> None:
    places = [
        RankPlace("t", rank, 2, (0, 1), (rank, 2), host, server.addresses) for rank, host in enumerate("ab")
    ]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(connect, p, settings(), KEY, lambda _: SEGMENT_BYTES) for p in places]
        meshes = [future.result(30.0) for future in futures]
    assert meshes[1][0] == Topology(1, 2, 0, 1, 1, 2, True, ("a", "b"))
    assert meshes[1][1].groups == [[0, 1]]
    close(meshes)


def test_one_rank_without_memfd_splits_the_group_on_every_rank(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, lock, calls = local.make_own, threading.Lock(), []

    def refuse_the_second(size: int, owner: Descriptors, base: int) -> local.Own:
        with lock:
            calls.append(size)
            number = len(calls)
        if number == 2:
            raise PermissionError(1, "not permitted here")
        return real(size, owner, base)

    monkeypatch.setattr(local, "make_own", refuse_the_second)
    meshes = form(server, [settings(), settings(), settings(), settings("single")])
    assert meshes[0][1].groups == [[0], [1], [2], [3]]
    assert_connected(meshes)
    assert "Ranks 0, 1, 2 cannot share memory and will use TCP" in caplog.text
    assert "not permitted here" in caplog.text
    close(meshes)


def test_peer_with_a_shrinkable_segment_splits_the_group(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsealed(size: int, owner: Descriptors, base: int) -> local.Own:
        own = make(size, owner, base)
        bare = owner.adopt(os.memfd_create("bare", os.MFD_CLOEXEC))
        os.ftruncate(bare, size)
        return replace(own, memfd=bare)

    make = local.make_own
    monkeypatch.setattr(local, "make_own", unsealed)
    meshes = form(server, [settings(), settings()])
    assert meshes[0][1].groups == [[0], [1]]
    assert_connected(meshes)
    close(meshes)


def test_lack_of_memory_is_an_error_on_every_rank_that_names_the_rank(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        if length == 3 * SEGMENT_BYTES:
            raise OSError(errno.ENOSPC, "no space")
        reserve(descriptor, offset, length)

    def three_on_rank_1(rank: int) -> Callable[[int], int]:
        return lambda _: 3 * SEGMENT_BYTES if rank == 1 else SEGMENT_BYTES

    reserve = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(connect, place(server, rank, 3), settings(), KEY, three_on_rank_1(rank))
            for rank in range(3)
        ]
        errors = failures(futures)
    assert isinstance(errors[1], BackendError)
    assert "shared memory could not be reserved: no space" in str(errors[1])
    for error in (errors[0], errors[2]):
        assert isinstance(error, RendezvousError)
        assert "Rank 1 on host here: " in str(error)


@pytest.mark.parametrize("mode", ["auto", "single"])
def test_rank_that_never_comes_is_named_on_all_others(server: StoreServer, mode: str) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        errors = failures(start_all(pool, server, [settings(mode, 0.5)] * 3, [0, 2]))
    assert time.monotonic() - began < 5.0
    for error in errors:
        assert isinstance(error, RendezvousError)
        assert error.missing == (1,)
        assert "Rank 1 of 3 did not call hvd.init() within 0.5 s" in str(error)
        assert "HOROVOD_START_TIMEOUT" in str(error)


def test_ranks_that_failed_together_can_try_again(server: StoreServer) -> None:
    with ThreadPoolExecutor(3) as pool:
        failures(start_all(pool, server, [settings(timeout_s=0.3)] * 3, [0, 2]))
        futures = start_all(pool, server, [settings()] * 3, [1])  # too late for the first round
        futures += start_all(pool, server, [settings()] * 3, [0, 2])
        meshes = sorted((future.result(30.0) for future in futures), key=lambda each: each[0].rank)
    assert_connected(meshes)
    close(meshes)


def test_hundred_rounds_leave_nothing_behind(server: StoreServer) -> None:
    close(form(server, [settings()] * 2))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        close(form(server, [settings()] * 2))
    deadline = time.monotonic() + 10.0  # the server, here too, closes its ends a moment after the clients
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before
    with StoreClient(server.address, KEY, 5.0, "test", job="job") as client:
        assert len(client.collect("epoch/", 0, 0.0)) < 12


def test_different_sizes_are_an_error_on_every_rank(server: StoreServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(
                connect, place(server, rank, size), settings(timeout_s=2.0), KEY, lambda _: SEGMENT_BYTES
            )
            for rank, size in ((0, 2), (1, 3))
        ]
        errors = failures(futures)
    assert isinstance(errors[0], ConfigError)
    assert "HOROVOD_SIZE" in (errors[0].variable or "")
    assert "rank 1 on host here was told 3" in str(errors[1])


def test_death_of_a_rank_while_connecting_is_noticed_at_once(server: StoreServer) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        future = start_all(pool, server, [settings()] * 2, [0])
        with StoreClient(server.address, KEY, 5.0, "rank 1 on host b", job="job") as doomed:
            doomed.watch("epoch/0/round/0/", 1, "b")
            doomed.get("epoch/0/round/0/identity/0", 10.0)
        (error,) = failures(future)
    assert isinstance(error, RendezvousError)
    assert "rank 1 on host b went away" in str(error)
    assert (error.rank, error.host, error.missing) == (1, "b", (1,))
    assert time.monotonic() - began < 5.0


def test_rank_that_fails_by_itself_is_named_by_all_others(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_room(more: int, what: str, perhaps: int) -> None:
        if what.startswith("Rank 1 "):
            raise BackendError("no descriptors are left")

    monkeypatch.setattr(mesh, "make_room", make_room)
    with ThreadPoolExecutor(3) as pool:
        first, culprit, last = failures(start_all(pool, server, [settings()] * 3))
    assert isinstance(culprit, BackendError)
    for error in (first, last):
        assert isinstance(error, RendezvousError)
        assert str(error) == "Rank 1 on host here: no descriptors are left"
        assert (error.rank, error.host, error.missing) == (1, "here", ())


def impostor_book(server: StoreServer, **changes: object) -> None:
    """Take rank 1's place in the store with an identity that leads nowhere."""
    with StoreClient(server.address, KEY, 5.0, "impostor", job="job") as client:
        identity = client.get("epoch/0/round/0/identity/0", 10.0)
        client.set("epoch/0/round/0/identity/1", {**identity, **changes})


def test_unreachable_rank_is_named_with_its_address(server: StoreServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        future = start_all(pool, server, [settings("single")] * 2, [1])
        with StoreClient(server.address, KEY, 5.0, "impostor", job="job") as client:
            identity = client.get("epoch/0/round/0/identity/1", 10.0)
            client.set("epoch/0/round/0/identity/0", identity)
            client.set("epoch/0/round/0/listening/0", [["127.0.0.1", port]])
        (error,) = failures(future)
    assert isinstance(error, RendezvousError)
    assert re.search(rf"cannot connect to rank 0 on host here at 127.0.0.1:{port}: .*refused", str(error))
    assert error.missing == (0,)


@pytest.mark.parametrize("mode", ["auto", "single"])
def test_silent_rank_is_named_when_time_is_up(server: StoreServer, mode: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = start_all(pool, server, [settings(mode, 1.0)] * 2, [0])
        impostor_book(server)
        (error,) = failures(future)
    assert isinstance(error, RendezvousError)
    assert error.missing == (1,)
    assert "rank 1 on host here within 1 s" in str(error)


def test_stranger_at_the_listening_sockets_changes_nothing(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers: list[socket.socket] = []
    really_listen_at, really_listen = network.listen_at, local.listen

    def come(family: int, address: Any) -> None:
        for index in range(20):
            stranger = socket.socket(family)
            stranger.connect(address)
            purpose = Purpose(Role.DATA if family == socket.AF_INET else Role.LOCAL, 1, 0)
            stranger.sendall([b"GET / HTTP/1.1\r\n\r\n" * 9, Dialer(KEY, purpose).hello, b"r"][index % 3])
            strangers.append(stranger)

    def listen_at(hosts: Sequence[str]) -> list[socket.socket]:
        listeners = really_listen_at(hosts)
        come(socket.AF_INET, listeners[0].getsockname())
        return listeners

    def listen() -> tuple[socket.socket, str]:
        listener, name = really_listen()
        come(socket.AF_UNIX, "\0" + name)
        return listener, name

    # Before anybody of the job knows where to dial.
    monkeypatch.setattr(network, "listen_at", listen_at)
    monkeypatch.setattr(local, "listen", listen)
    for mode in ("single", "auto"):
        meshes = form(server, [replace(settings(mode), epoch=mode)] * 2)
        assert_connected(meshes)
        close(meshes)
    assert len(strangers) == 20 * (2 + 1 + 2)
    for stranger in strangers:
        stranger.close()


def test_abort_by_another_rank_ends_the_waiting(server: StoreServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = start_all(pool, server, [settings("single")] * 2, [0])
        impostor_book(server)
        with StoreClient(server.address, KEY, 5.0, "other", job="job") as client:
            client.abort("epoch/0/round/0/", Cause("rank 1 has had enough", (1,)))
        (error,) = failures(future)
    assert "rank 1 has had enough" in str(error)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(3), " ended within hvd.init() by sys.exit(3)."),
        (SystemExit(), " ended within hvd.init() by sys.exit()."),
        (SystemExit("no\ndata"), " ended within hvd.init() by sys.exit('no\\ndata')."),
        (KeyboardInterrupt(), ": KeyboardInterrupt"),
        (ValueError("boom"), ": ValueError: boom"),
        (BackendError("out of cards", library="cards", code=1), ": out of cards"),
    ],
    ids=["status", "no status", "message", "interrupt", "error", "own error"],
)
def test_what_ends_a_rank_within_init_is_told_in_words(
    server: StoreServer, error: BaseException, told: str
) -> None:
    def prepare(_: Topology, __: Mesh) -> None:
        raise error

    with ThreadPoolExecutor(2) as pool:
        others = start_all(pool, server, [settings("single")] * 2, [0])
        arguments = (place(server, 1, 2), settings("single"), KEY, lambda _: SEGMENT_BYTES)
        failed = pool.submit(connect, *arguments, prepare=prepare)
        assert failed.exception(30.0) is error
        (heard,) = failures(others)
    assert str(heard) == f"Rank 1 on host here{told}"


def test_unknown_interface_is_an_error_that_lists_those_that_exist(server: StoreServer) -> None:
    config = replace(settings(), network_interface="nosuch0")
    with pytest.raises(ConfigError, match=r"nosuch0: host .* has no address .*\blo \(127.0.0.1"):
        connect(place(server, 0, 2), config, KEY, lambda _: SEGMENT_BYTES)


def test_named_interface_is_the_one_listened_on(server: StoreServer) -> None:
    meshes = form(server, [replace(settings("single"), network_interface="lo,eth0")] * 2)
    assert_connected(meshes)
    close(meshes)


@dataclass
class FakeEngine:
    refuse: int = 99
    taken: list[int] = field(default_factory=list)
    calls: int = 0
    absent: dict[int, int] = field(default_factory=dict)

    def take(self, *descriptors: int) -> None:
        self.taken += [fd for fd in descriptors if fd >= 0]
        self.calls += 1
        if self.calls == self.refuse:
            raise RuntimeError("refused")

    def own_segment(self, memfd: int, engine_bell: int, waiter_bell: int) -> None:
        self.take(memfd, engine_bell, waiter_bell)

    def add_local_peer(self, rank: int, *descriptors: int) -> None:
        self.take(*descriptors)

    def add_network_peer(
        self, rank: int, control: int, data: list[int], protection: int, keys: list[bytes]
    ) -> None:
        self.take(control, *data)

    def add_absent_peer(self, rank: int, streams: int) -> None:
        self.absent[rank] = streams


@pytest.mark.parametrize(("protection", "level"), [("auto", 0), ("off", 0), ("integrity", 1), ("full", 2)])
def test_both_ends_of_a_protected_connection_have_its_keys(
    server: StoreServer, protection: str, level: int
) -> None:
    """By default nothing on one machine: who stands at loopback is root."""
    config = replace(settings("single"), network_protection=protection, network_streams=2)
    meshes = form(server, [config] * 3)
    used = set()
    for rank, (_, mine) in enumerate(meshes):
        for other in mine.network_peers:
            back = next(peer for peer in meshes[other.rank][1].network_peers if peer.rank == rank)
            assert other.sealed.level == back.sealed.level == level
            assert len(other.sealed.keys) == (0 if level == 0 else 3)
            for ours, theirs in zip(other.sealed.keys, back.sealed.keys, strict=True):
                assert (ours[:44], ours[44:]) == (theirs[44:], theirs[:44])
                used.add(ours[:44])
    control = 0 if level == 0 else 2 * 2 + 1  # two edges, and the zeros of the pair without one
    assert len(used) == (0 if level == 0 else 6 * 2 + control)
    close(meshes)


def test_different_protections_are_an_error_that_names_both_ranks(server: StoreServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        configs = [replace(settings("single"), network_protection=each) for each in ("full", "off")]
        told = [str(error) for error in failures(start_all(pool, server, configs))]
    for text in told:
        assert "HOROVOD_NETWORK_PROTECTION is" in text
        assert "rank 0 on host here" in text
        assert "rank 1 on host here" in text


@pytest.mark.parametrize("protection", ["auto", "full"])
def test_a_rank_without_a_cipher_is_named_where_one_is_needed(server: StoreServer, protection: str) -> None:
    config = replace(settings("single"), network_protection=protection)
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(
                connect, place(server, rank, 2), config, KEY, lambda _: SEGMENT_BYTES, (), None, missing
            )
            for rank, missing in enumerate(("", "libcrypto.so.3"))
        ]
        if protection == "auto":
            close([future.result(30.0) for future in futures])
            return
        for error in failures(futures):
            assert "rank 1 on host here" in str(error)
            assert "libcrypto.so.3 of OpenSSL is not there" in str(error)
            assert "HOROVOD_NETWORK_PROTECTION=off" in str(error)


@pytest.mark.parametrize("refuse", [1, 2, 3, 99])
def test_every_descriptor_has_one_owner_after_the_hand_over(server: StoreServer, refuse: int) -> None:
    meshes = form(server, [settings(), settings(), settings("single")])
    mine, engine = meshes[0][1], FakeEngine(refuse)
    owned = descriptors_of(mine)
    try:
        mine.hand_over(engine)
    except RuntimeError:
        assert engine.calls == refuse
    assert len(set(engine.taken)) == len(engine.taken)
    assert [fd for fd in owned if is_open(fd)] == sorted(engine.taken)
    # Strangers take all their numbers. (How many descriptors are open would not tell: the store, here too,
    # closes its ends a moment after the ranks.)
    stranger = os.open(os.devnull, os.O_RDONLY)
    for descriptor in owned:
        os.dup2(stranger, descriptor)
    mine.close()
    assert [fd for fd in owned if not is_open(fd)] == []
    for descriptor in (*owned, stranger):
        os.close(descriptor)
    close(meshes)


def descriptors_of(one: Mesh) -> list[int]:
    assert one.own is not None
    found = [one.own.memfd, one.own.engine_bell, one.own.waiter_bell]
    for peer in one.local_peers:
        found += [peer.memfd, peer.engine_bell, peer.waiter_bell, peer.pidfd, peer.liveness]
    for other in one.network_peers:
        found += [other.control, *other.data]
    return sorted(fd for fd in found if fd >= 0)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("signed", [True, False])
def test_descriptors_of_a_hostile_header_are_closed(signed: bool) -> None:
    ours, theirs = socket.socketpair()
    owner = Descriptors()
    own = local.make_own(SEGMENT_BYTES, owner)
    before = len(os.listdir("/proc/self/fd"))
    ours.setblocking(False)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))]
    mine, other = (Session.of(KEY, b"said", dialed=dialed) for dialed in (False, True))
    header = struct.pack(">8sQB", b"faran fd", SEGMENT_BYTES, 4)
    theirs.sendmsg([other.signer().signed(header) if signed else header + bytes(TAG_BYTES)], rights)
    talk = local.exchange(ours, mine, 1, own, owner)
    with pytest.raises(OSError, match="2 descriptors arrived, 4 were announced" if signed else "not signed"):
        for _ in talk:
            pass
    owner.close()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) < before


def test_process_sets_are_agreed_on_without_another_round_trip(server: StoreServer) -> None:
    sets = [[1], [0, 1], [1]]
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(connect, place(server, rank, 3), settings(), KEY, lambda _: SEGMENT_BYTES, sets)
            for rank in range(3)
        ]
        meshes = [future.result(30.0) for future in futures]
    assert [mesh.process_sets for _, mesh in meshes] == [[[1], [0, 1]]] * 3
    close(meshes)


def test_different_process_sets_are_the_same_error_on_every_rank(server: StoreServer) -> None:
    for _ in range(5):  # the ranks find out at different times
        with ThreadPoolExecutor(3) as pool:
            futures = [
                pool.submit(
                    connect, place(server, rank, 3), settings(), KEY, lambda _: SEGMENT_BYTES, [[rank // 2]]
                )
                for rank in range(3)
            ]
            errors = failures(futures)
        assert {type(error) for error in errors} == {InvalidArgumentError}
        assert len({str(error) for error in errors}) == 1
        assert "process_sets[0] is [0] on rank 0 and [1] on rank 2" in str(errors[0])
