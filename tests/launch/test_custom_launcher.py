"""What users write launchers with: they place ranks, serve the place where these meet, and start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.errors import ConfigError, LaunchError
from horovod.runner.common.util import hosts, secret, timeout
from horovod.runner.gloo_run import RendezvousServer, create_run_env_vars, create_slot_env_vars

RANK = Path(__file__).with_name("custom_launcher_rank.py")
LIMIT_S = 60.0
OF_A_JOB = ("HOROVOD_SECRET_KEY", "HOROVOD_JOB_ID", "HOROVOD_STORE")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without a key."""
    for name in OF_A_JOB:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(home: Path) -> Iterator[RendezvousServer]:
    server = RendezvousServer(verbose=0)
    yield server
    server.stop()


def start(port: int, plan: list[hosts.SlotInfo], **more: str) -> list[subprocess.Popen[str]]:
    """The ranks of ``plan``, on this host, with an environment that is made from nothing."""
    bare = {name: os.environ[name] for name in ("PATH", "HOME")} | {"HOROVOD_START_TIMEOUT": "20"}
    common = create_run_env_vars("127.0.0.1", ["lo"], port)
    return [
        subprocess.Popen(
            [sys.executable, str(RANK)],
            env=bare | common | create_slot_env_vars(slot) | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for slot in plan
    ]


def ends(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    found = []
    for rank in ranks:
        out, errors = rank.communicate(timeout=LIMIT_S)
        found.append((rank.returncode, out.strip()))
        if rank.returncode not in (0, 3):
            pytest.fail(errors)
    return found


@pytest.mark.timeout(120)
def test_ranks_of_a_launcher_of_ones_own_meet_at_its_server(server: RendezvousServer) -> None:
    plan = hosts.get_host_assignments(hosts.parse_hosts("localhost:2"), 2)
    port = server.start()
    assert server.listen_port == port
    server.init(plan)
    assert ends(start(port, plan)) == [(0, "0 2 0 2 3.0"), (0, "1 2 1 2 3.0")]
    with pytest.raises(LaunchError, match="started already"):
        server.start()


@pytest.mark.timeout(120)
def test_the_key_of_the_environment_counts_before_that_of_the_file(
    server: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "ab" * 32)
    plan = hosts.get_host_assignments(hosts.parse_hosts("localhost:2"), 2)
    port = server.start()
    ranks = start(port, plan, HOROVOD_SECRET_KEY="ab" * 32)
    assert ends(ranks) == [(0, "0 2 0 2 3.0"), (0, "1 2 1 2 3.0")]


@pytest.mark.timeout(120)
def test_who_has_another_key_is_not_let_in(server: RendezvousServer, tmp_path: Path) -> None:
    plan = hosts.get_host_assignments(hosts.parse_hosts("localhost:2"), 2)
    port = server.start()
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    assert ends(start(port, plan[:1], HOME=str(stranger))) == [(3, "AuthenticationError")]


def test_a_key_that_others_can_read_is_refused(server: RendezvousServer, home: Path) -> None:
    file = home / ".config" / "farandole" / "key"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(32))
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=str(file)):
        server.start()


def test_handlers_are_refused(server: RendezvousServer) -> None:
    with pytest.raises(NotImplementedError, match="no handlers"):
        server.start(handler_cls=object)


# -- places -------------------------------------------------------------------------------------------------


def test_hosts_and_places() -> None:
    given = hosts.parse_hosts("a:2,b:1")
    assert given == [hosts.HostInfo("a", 2), hosts.HostInfo("b", 1)]
    assert hosts.HostInfo.from_string("a:2") == given[0]
    assert hosts.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})
    plan = hosts.get_host_assignments(given, 1, 3)
    assert plan == [
        hosts.SlotInfo("a", 0, 0, 0, 3, 2, 2),
        hosts.SlotInfo("a", 1, 1, 0, 3, 2, 1),
        hosts.SlotInfo("b", 2, 0, 1, 3, 1, 2),
    ]
    assert plan[2].to_response_string() == "2,3,0,1,1,2"
    assert hosts.INVALID_SLOT_INFO.to_response_string() == "-1,-1,-1,-1,-1,-1"
    assert create_slot_env_vars(plan[2])["HOROVOD_CROSS_RANK"] == "1"
    with pytest.raises(
        ValueError, match=r"Requested more processes \(4\) than there are slots \(3\): a:2,b:1"
    ):
        hosts.get_host_assignments(given, 4)


def test_host_files_become_what_parse_hosts_takes(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2  # comment\n\nb\n")
    assert hosts.parse_host_files(str(file)) == "a:2,b:1"
    assert hosts.parse_hosts(hosts.parse_host_files(str(file)))[1] == hosts.HostInfo("b", 1)


def test_what_is_no_host_is_refused() -> None:
    for text in ("a", "a:x", "", "a:1,,b:1"):
        with pytest.raises(ValueError, match="cannot be read"):
            hosts.parse_hosts(text)
    with pytest.raises(ValueError, match="'a:1,b:1' names several hosts"):
        hosts.HostInfo.from_string("a:1,b:1")


def test_one_interface_is_not_taken_for_its_letters() -> None:
    for nics in ("eth0", ["eth0"]):
        assert create_run_env_vars("10.0.0.1", nics, 1)["HOROVOD_GLOO_IFACE"] == "eth0"
    assert "HOROVOD_GLOO_IFACE" not in create_run_env_vars("10.0.0.1", [], 1)


# -- keys and limits ----------------------------------------------------------------------------------------


def test_digests() -> None:
    key = secret.make_secret_key()
    assert len(key) == 32
    assert key != secret.make_secret_key()
    digest = secret.compute_digest(key, b"said")
    assert len(digest) == secret.DIGEST_LENGTH_BYTES
    assert secret.check_digest(key, b"said", digest)
    assert not secret.check_digest(key, b"sais", digest)
    assert not secret.check_digest(secret.make_secret_key(), b"said", digest)
    # RFC 4231, test case 2.
    known = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert secret.compute_digest(b"Jefe", b"what do ya want for nothing?").hex() == known


def test_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    limit = timeout.Timeout(5.0, "{activity} took longer than {timeout} s")
    limit.check_time_out_for("starting")
    now[0] = 103.0
    assert (limit.remaining(), limit.timed_out()) == (2.0, False)
    now[0] = 105.0
    assert (limit.remaining(), limit.timed_out()) == (0.0, True)
    with pytest.raises(timeout.TimeoutException, match=r"^starting took longer than 5\.0 s$"):
        limit.check_time_out_for("starting")
