from __future__ import annotations

import base64
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod.bootstrap.mesh.connecting import connect
from horovod.bootstrap.place import launcher_channels, pmi
from horovod.bootstrap.place.topology import PORT_OF_KEY, RankPlace
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.meeting import Meeting, meet
from horovod.bootstrap.trust import unix
from horovod.config import Config
from horovod.errors import AuthenticationError, ConfigError, RendezvousError

pytestmark = pytest.mark.timeout(60)


def place(rank: int, *channels: str, job: str = "mpirun/7", size: int = 2) -> RankPlace:
    return RankPlace(
        "mpirun", rank, size, None, None, f"host{rank}", job=job, one_host=True, channels=channels
    )


def settings(timeout_s: float = 20.0) -> Config:
    return replace(Config(), init_timeout_s=timeout_s)


def home(folder: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder)}


def assert_met(first: Meeting, second: Meeting) -> None:
    assert first.key == second.key
    assert first.place.job == second.place.job != ""
    assert first.place.store == second.place.store != ()
    assert first.served is not None
    assert second.served is None
    with StoreClient(second.place.store, second.key, 5.0, "rank 1", job=second.place.job) as client:
        assert client.add("n") == 1


# -- a file in the home directory --


def test_ranks_meet_through_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(meet, place(1, "file"), settings(), home(tmp_path), None)
        first = meet(place(0, "file"), settings(), home(tmp_path), None)
        (card,) = (tmp_path / "farandole" / "jobs").iterdir()
        assert stat.S_IMODE(card.stat().st_mode) == 0o600
        assert first.key.hex() not in card.read_text()
        assert_met(first, second.result(20.0))
    first.end(home(tmp_path))
    assert list((tmp_path / "farandole" / "jobs").iterdir()) == []


def test_a_card_of_a_program_that_has_ended_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_old = threading.Event()

    def wait(seconds: float) -> None:
        found_old.set()
        time.sleep(seconds)

    monkeypatch.setattr(
        "horovod.bootstrap.store.meeting.time", SimpleNamespace(monotonic=time.monotonic, sleep=wait)
    )
    old = meet(place(0, "file"), settings(), home(tmp_path), None)
    assert old.served is not None
    old.served.stop()  # killed: its card is still there
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(meet, place(1, "file"), settings(), home(tmp_path), None)
        assert found_old.wait(20.0)
        first = meet(place(0, "file"), settings(), home(tmp_path), None)
        assert_met(first, second.result(20.0))
    first.end(home(tmp_path))


def test_a_card_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    first = meet(place(0, "file"), settings(), home(tmp_path), None)
    (card,) = (tmp_path / "farandole" / "jobs").iterdir()
    card.chmod(0o644)
    with pytest.raises(ConfigError, match="not a file of yours that nobody else can read"):
        meet(place(1, "file"), settings(), home(tmp_path), None)
    first.end(home(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"), [("at", [["127.0.0.2", 4711]]), ("at", [["127.0.0.1", 22]]), ("job", "0" * 32)]
)
def test_a_card_that_was_altered_is_refused(tmp_path: Path, name: str, value: object) -> None:
    first = meet(place(0, "file"), settings(), home(tmp_path), None)
    (card,) = (tmp_path / "farandole" / "jobs").iterdir()
    said = json.loads(base64.urlsafe_b64decode(card.read_text() + "=="))
    if name == "at":  # the altered address comes first, and the right one after it
        assert isinstance(value, list)
        value = [*value, *said["at"]]
    altered = {**said, name: value}
    card.write_text(base64.urlsafe_b64encode(json.dumps(altered).encode()).decode().rstrip("="))
    with pytest.raises(ConfigError, match="somebody has altered what rank 0 told through file"):
        meet(place(1, "file"), settings(), home(tmp_path), None)
    first.end(home(tmp_path))


def test_rank_0_that_never_comes_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match=r"Rank 0 left no address .* within 0.3 s") as caught:
        meet(place(1, "file"), settings(0.3), home(tmp_path), None)
    assert caught.value.missing == (0,)


def test_the_next_world_of_a_process_meets_at_the_same_place(tmp_path: Path) -> None:
    first = meet(place(0, "file"), settings(), home(tmp_path), None)
    assert meet(place(0, "file"), settings(), home(tmp_path), first) is first
    other = meet(place(0, "file", job="mpirun/8"), settings(), home(tmp_path), first)
    assert other.place.job != first.place.job
    other.end(home(tmp_path))


def test_without_pmix_the_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_channels, "_library", lambda _: "/nowhere/libpmix.so.2")
    environ = {**home(tmp_path), "PMIX_NAMESPACE": "x"}
    first = meet(place(0, "pmix", "file"), settings(), environ, None)
    assert first.channel == "file"
    assert_met(first, meet(place(1, "pmix", "file"), settings(), environ, None))
    first.end(environ)
    with pytest.raises(ConfigError, match=r"does not say where to meet.*Tried: PMIx: .*libpmix"):
        meet(place(0, "pmix"), settings(), environ, None)


# -- one machine --


def like_torchrun(rank: int, job: str = "torchrun/7") -> RankPlace:
    """Its variables say that all ranks are on one host."""
    return RankPlace(
        "torchrun", rank, 2, None, None, "a", ((unix.NAME_OF_KEY, PORT_OF_KEY),), serves=rank == 0, job=job
    )


def test_ranks_of_one_machine_meet_at_a_socket_whose_name_follows_from_the_key(tmp_path: Path) -> None:
    first = meet(like_torchrun(0), settings(), home(tmp_path), None)
    assert_met(first, meet(like_torchrun(1), settings(), home(tmp_path), None))
    assert meet(like_torchrun(0), settings(), home(tmp_path), first).served is first.served
    ((name, _),) = first.place.store
    assert unix.is_name(name)
    assert first.key.hex() not in name
    with pytest.raises(ConfigError, match=r"cannot serve the store at @.* in use.*another job with the same"):
        meet(like_torchrun(0), settings(), home(tmp_path), None)
    other = meet(like_torchrun(0, "torchrun/8"), settings(), home(tmp_path), None)
    assert other.place.store != first.place.store
    for meeting in (first, other):
        meeting.end(home(tmp_path))


def test_a_process_that_begins_another_job_serves_another_store(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    place = replace(like_torchrun(0), store=(address,))
    first = meet(place, settings(), home(tmp_path), None)
    assert meet(place, settings(), home(tmp_path), first).served is first.served
    second = meet(replace(place, job="torchrun/8"), settings(), home(tmp_path), first)
    assert second.served is not None
    assert (second.served.job, second.served.address) == ("torchrun/8", address)
    second.end(home(tmp_path))


def test_where_the_launcher_says_one_host_nobody_listens_on_tcp(tmp_path: Path) -> None:
    first = meet(place(0, "file"), settings(), home(tmp_path), None)
    assert [unix.is_name(host) for host, _ in first.place.store] == [True]
    first.end(home(tmp_path))


@pytest.mark.parametrize("how", ["card", "variables"])
def test_the_store_of_another_job_with_the_same_key_lets_nobody_in(tmp_path: Path, how: str) -> None:
    """As of two jobs of one user who has set one key for both, where somebody leads a rank astray."""
    environ = {**home(tmp_path), "HOROVOD_SECRET_KEY": "ab" * 32}
    places = [place(0, "file", job=job) if how == "card" else like_torchrun(0, job) for job in ("a/1", "a/2")]
    first, second = (meet(each, settings(), environ, None) for each in places)
    astray = replace(second.place, rank=1, store=first.place.store)
    assert second.key == first.key
    with pytest.raises(AuthenticationError, match="does not find the store of this job"):
        connect(astray, settings(1.0), second.key, lambda _: 1 << 16)
    for meeting in (first, second):
        meeting.end(environ)


# -- PMI --


class FakePmi:
    """What MPICH's process manager answers, for ``size`` processes."""

    def __init__(self, size: int) -> None:
        self.values: dict[str, str] = {}
        self.heard: list[str] = []
        self._size = size
        self._waiting: list[socket.socket] = []
        self._lock = threading.Lock()
        pairs = [socket.socketpair() for _ in range(size)]
        self.ends = [end for end, _ in pairs]
        self._servers = [server for _, server in pairs]
        self._threads = [threading.Thread(target=self._serve, args=(server,)) for server in self._servers]
        for thread in self._threads:
            thread.start()

    def _serve(self, server: socket.socket) -> None:
        for line in server.makefile():
            words = dict(word.split("=", 1) for word in line.split())
            self.heard.append(words["cmd"])
            answer = {
                "init": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
                "get_my_kvsname": "cmd=my_kvsname rc=0 kvsname=kvs_1",
                "put": "cmd=put_result rc=0",
                "get": f"cmd=get_result rc=0 value={self.values.get(words.get('key', ''), '')}",
                "barrier_in": "",
                "finalize": "cmd=finalize_ack",
            }[words["cmd"]]
            if words["cmd"] == "put":
                self.values[words["key"]] = words["value"]
            if words["cmd"] == "barrier_in":
                with self._lock:
                    self._waiting.append(server)
                    if len(self._waiting) == self._size:
                        for each in self._waiting:
                            each.sendall(b"cmd=barrier_out rc=0\n")
                        self._waiting.clear()
            else:
                server.sendall(answer.encode() + b"\n")

    def close(self) -> None:
        for end in self.ends:
            end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(10.0)
        for server in self._servers:
            server.close()


@contextmanager
def pmi_server(size: int) -> Iterator[FakePmi]:
    server = FakePmi(size)
    try:
        yield server
    finally:
        server.close()


def test_ranks_meet_through_pmi(tmp_path: Path) -> None:
    with pmi_server(2) as server, ThreadPoolExecutor(1) as pool:
        environs = [{**home(tmp_path), "PMI_FD": str(end.fileno())} for end in server.ends]
        second = pool.submit(meet, place(1, "pmi", job=""), settings(), environs[1], None)
        first = meet(place(0, "pmi", job=""), settings(), environs[0], None)
        assert_met(first, second.result(20.0))
        assert first.key.hex() not in str(server.values)
        for end in server.ends:
            os.fstat(end.fileno())  # still open: an MPI library may need it
        first.end(environs[0])


def test_hosts_without_a_common_home_are_told_to_share_a_key(tmp_path: Path) -> None:
    with pmi_server(2) as server, ThreadPoolExecutor(1) as pool:
        environs = [
            {**home(tmp_path / str(rank)), "PMI_FD": str(end.fileno())}
            for rank, end in enumerate(server.ends)
        ]
        second = pool.submit(meet, place(1, "pmi", job=""), settings(), environs[1], None)
        first = meet(place(0, "pmi", job=""), settings(), environs[0], None)
        with pytest.raises(ConfigError, match=r"do these hosts share it\? Else give every rank"):
            second.result(20.0)
        first.end(environs[0])


@pytest.mark.parametrize(
    ("script", "farewells", "status"),
    [
        ("", 1, 0),
        ("pmi.exchange(os.environ, 'card', 5.0)", 1, 0),
        ("sys.exit(3)", 1, 3),
        ("if os.fork() == 0: sys.exit()\nos.wait()", 1, 0),
        ("os.close(int(os.environ['PMI_FD']))", 0, 0),
        # Another socket has its number.
        ("os.close(int(os.environ['PMI_FD'])); ends = socket.socketpair()", 0, 0),
        ("os._exit(0)", 0, 0),
    ],
    ids=["end", "two worlds", "status", "forked", "closed", "reused", "at once"],
)
def test_a_process_that_ends_says_farewell_to_pmi_once(script: str, farewells: int, status: int) -> None:
    """MPICH's launcher kills the others if one is gone that has not."""
    begin = (
        "import os, socket, sys\nfrom horovod.bootstrap.place import pmi\n"
        "pmi.exchange(os.environ, 'card', 5.0)\n"
    )
    with pmi_server(1) as server:
        end = server.ends[0].fileno()
        done = subprocess.run(
            [sys.executable, "-c", begin + script],
            env={**os.environ, "PMI_FD": str(end)},
            pass_fds=(end,),
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stderr) == (status, b"")
        assert server.heard.count("finalize") == farewells


def test_pmi_that_waits_for_ever_is_an_error_in_time() -> None:
    late = r"Not all ranks called hvd.init\(\) within 0.2 s"
    with pmi_server(2) as server, pytest.raises(RendezvousError, match=late):
        pmi.exchange({"PMI_FD": str(server.ends[0].fileno())}, "", 0.2)
    with pytest.raises(RendezvousError, match="PMI_FD=999 is not open"):
        pmi.exchange({"PMI_FD": "999"}, "", 0.2)


def test_nonsense_from_pmi_is_an_error_that_shows_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\xff\x00 = =\n")
        with pytest.raises(RendezvousError, match=r"answered .*\\xff"):
            pmi.exchange({"PMI_FD": str(ours.fileno())}, "", 5.0)
