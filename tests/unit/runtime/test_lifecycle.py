from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horovod import _core
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.config import Config
from horovod.errors import ConfigError, HorovodInternalError, NotInitializedError, RendezvousError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet

pytestmark = pytest.mark.timeout(60)

SOURCE = Path(lifecycle.__file__).parents[2]
KEY = secrets.token_bytes(32)
BINARIES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


class FakeEngine:
    """Owns descriptors as the real one does, and does nothing with them."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.options = SimpleNamespace(**settings)
        self.descriptors: list[int] = []
        self.peers: list[int] = []
        self.states: list[str] = []

    def own_segment(self, memfd: int, engine_bell: int, waiter_bell: int) -> None:
        self.descriptors += [memfd, engine_bell, waiter_bell]

    def add_local_peer(self, rank: int, *descriptors: int) -> None:
        self.peers.append(rank)
        self.descriptors += [fd for fd in descriptors if fd >= 0]

    def add_network_peer(
        self, rank: int, control: int, data: list[int], protection: int, keys: list[bytes]
    ) -> None:
        self.peers.append(rank)
        self.descriptors += [fd for fd in (control, *data) if fd >= 0]

    def open(self) -> None:
        pass

    def start(self) -> None:
        self.states.append("start")

    def failure(self) -> BaseException | None:
        return None

    def shutdown(self, script_over: bool = False, failure: str = "") -> None:
        self.states.append("shutdown")

    def release(self, patience_s: float = 0.0) -> None:
        self.states.append("release")
        while self.descriptors:
            os.close(self.descriptors.pop())


class FakeCore:
    Engine = FakeEngine

    def segment_bytes(self, local_size: int) -> int:
        return 4096 * local_size

    def segment_base_bytes(self, local_size: int) -> int:
        return 4096

    def missing_cipher(self) -> str:
        return ""


CORE: Any = FakeCore()


def engine(runtime: lifecycle.Runtime) -> Any:
    """The runtime's engine, which is a fake one here."""
    return runtime.engine


@pytest.fixture(autouse=True)
def _leave_no_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Frameworks that other tests imported follow the world natively: the engine here is none of theirs.
    monkeypatch.setattr(lifecycle, "_followers", [])
    yield
    lifecycle.stop()


def test_before_start_there_is_no_world() -> None:
    assert not lifecycle.is_initialized()
    with pytest.raises(NotInitializedError, match=r"use hvd\.init"):
        lifecycle.current()
    lifecycle.stop()


def test_world_of_one_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a world of one opened something")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    threads = threading.active_count()
    runtime = lifecycle.start(environ={}, core=CORE)
    assert threading.active_count() == threads
    assert runtime is lifecycle.current()
    assert (runtime.topology.rank, runtime.topology.size) == (0, 1)
    options = engine(runtime).options
    assert (options.rank, options.size, options.groups) == (0, 1, [[0]])
    assert options.hosts == [socket.gethostname()]


def test_second_start_is_the_same_world_and_start_after_stop_another() -> None:
    first = lifecycle.start(environ={}, core=CORE)
    assert lifecycle.start(environ={"HOROVOD_SIZE": "nonsense"}, core=CORE) is first
    lifecycle.stop()
    lifecycle.stop()
    assert engine(first).states == ["start", "shutdown", "release"]
    assert not lifecycle.is_initialized()
    assert lifecycle.start(environ={}, core=CORE) is not first


def test_settings_reach_the_engine() -> None:
    environ = {
        "HOROVOD_RANK": "0",
        "HOROVOD_SIZE": "1",
        "HOROVOD_FUSION_THRESHOLD": "1000",
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "9",
        "HOROVOD_LOG_LEVEL": "error",
        "HOROVOD_THREAD_AFFINITY": "3",
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
        "HOROVOD_LOG_HIDE_TIME": "1",
        "HOROVOD_DIRECT_COPIES": "0",
    }
    options = engine(lifecycle.start(environ=environ, core=CORE)).options
    assert options.fusion_threshold_bytes == 1024
    assert options.cycle_time_s == 0.002
    assert options.cache_capacity == 7
    assert (options.stall_warning_s, options.stall_shutdown_s) == (0.0, 0.0)
    assert options.operation_timeout_s == 9.0
    assert (options.log_level, options.log_hide_time) == (4, True)
    assert options.thread_affinity == 3
    assert options.disable_group_fusion is True
    assert options.direct_copies is False


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colour": "red"}, "setting colour is none of the engine"),
        ({"cycle_time_s": None}, "setting cycle_time_s of the engine is missing"),
        ({"cycle_time_s": "soon"}, "setting cycle_time_s of the engine has a value of the wrong type"),
        ({"fusion_threshold_bytes": -1}, "setting fusion_threshold_bytes of the engine has a value"),
        ({"direct_copies": 1}, "setting direct_copies of the engine has a value of the wrong type"),
    ],
)
def test_engine_refuses_settings_that_it_does_not_know_or_misses(
    change: dict[str, Any], sentence: str
) -> None:
    settings = vars(engine(lifecycle.start(environ={}, core=CORE)).options)
    _core.Engine(settings).release()
    changed = {name: value for name, value in (settings | change).items() if change.get(name, 0) is not None}
    with pytest.raises(ValueError, match=sentence):
        _core.Engine(changed)


def test_too_few_cores_pin_nothing_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
    options = engine(lifecycle.start(Config(thread_affinity=(5,)), environ=environ, core=CORE)).options
    assert options.thread_affinity == -1
    assert "HOROVOD_THREAD_AFFINITY names 1 cores for 2 local ranks" in caplog.text


def test_bad_environment_leaves_no_world() -> None:
    with pytest.raises(ConfigError):
        lifecycle.start(environ={"HOROVOD_RANK": "0"}, core=CORE)
    assert not lifecycle.is_initialized()


def test_process_sets_reach_the_engine_and_lose_their_numbers_at_the_end() -> None:
    runtime = lifecycle.start(environ={}, core=CORE, process_sets=[[0]])
    assert engine(runtime).options.process_sets == []  # in a world of one this is everybody
    numbered = ProcessSet([0])
    numbered.process_set_id = 3
    runtime.numbered.add(numbered)
    lifecycle.stop()
    assert numbered.process_set_id is None


REFUSED = """
import os
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
rank = int(os.environ["HOROVOD_RANK"])
texts = []
for sets in ([[rank]], [[0]], []):
    try:
        lifecycle.start(core=CORE, process_sets=sets)
    except ValueError as error:
        texts.append(str(error))
    lifecycle.stop()
print(len(texts), len(set(texts)), texts[0])
"""


def test_a_world_that_was_refused_for_its_process_sets_stays_refused() -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, 2, REFUSED)
    assert len(set(outputs)) == 1
    assert outputs[0].startswith("3 1 Horovod initialization failed: "), outputs


def test_forked_child_is_told_what_to_do() -> None:
    runtime = lifecycle.start(environ={}, core=CORE)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for call in (lifecycle.current, lambda: lifecycle.start(environ={}, core=CORE)):
            try:
                call()
            except HorovodInternalError as error:
                texts.append(str(error))
        texts.append(f"{lifecycle.has_topology()} {lifecycle.topology() is runtime.topology}")
        lifecycle.stop()
        texts.append(f"{lifecycle.is_initialized()} {engine(runtime).states}")
        os.write(writer, "\n".join(texts).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        current, start, known, state = pipe.read().split("\n")
    assert os.waitpid(child, 0)[1] == 0
    assert current == start
    assert f"forked from rank 0 (process {os.getpid()}) after hvd.init()" in current
    assert "spawn" in current
    assert known == "True True"  # for loader workers that share samples out
    assert state == "False ['start']"
    assert lifecycle.current() is runtime


def test_fork_before_start_is_harmless() -> None:
    child = os.fork()
    if child == 0:
        lifecycle.start(environ={}, core=CORE)
        lifecycle.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def run_ranks(
    server: StoreServer, size: int, script: str, *, timeout_s: float = 30.0, **environ: str
) -> list[str]:
    """Run ``script`` as so many processes of one job; their outputs by rank, errors included."""
    base = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    host, port = server.address
    base |= {
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)]),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_SECRET_KEY": KEY.hex(),
        "HOROVOD_JOB_ID": "test",
        **environ,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**base, "HOROVOD_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        return [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


CYCLES = """
import os, threading
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
def once():
    runtime = lifecycle.start(core=CORE)
    assert sorted(runtime.engine.peers + [runtime.topology.rank]) == list(range(runtime.topology.size))
    lifecycle.stop()
    return runtime
once()
before = len(os.listdir("/proc/self/fd")), threading.active_count()
for _ in range(20):
    runtime = once()
assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
print("groups", runtime.engine.options.groups, "rank", runtime.topology.local_rank)
"""


@pytest.mark.parametrize(("mode", "groups"), [("auto", "[[0, 1, 2]]"), ("single", "[[0], [1], [2]]")])
def test_processes_form_a_world_again_and_again(mode: str, groups: str) -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, 3, CYCLES, HOROVOD_TRANSPORT_GROUPS=mode)
    assert outputs == [f"groups {groups} rank {rank}\n" for rank in range(3)]


TWICE_THE_SAME_RANK = """
import os
os.environ["HOROVOD_RANK"] = "0"
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
lifecycle.start(core=CORE)
"""


def test_two_processes_with_one_rank_are_both_told_at_once() -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, 2, TWICE_THE_SAME_RANK, HOROVOD_START_TIMEOUT="25", timeout_s=20.0)
    for output in outputs:
        assert "Two processes say that they are rank 0" in output


EXITS_EARLY = """
import os, sys
if os.environ["HOROVOD_RANK"] == "1":
    sys.exit()
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
lifecycle.start(core=CORE)
"""


def test_missing_rank_is_named_in_every_process() -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, 3, EXITS_EARLY, HOROVOD_START_TIMEOUT="5")
    assert outputs[1] == ""
    for output in (outputs[0], outputs[2]):
        assert "Rank 1 of 3 did not call hvd.init() within 5 s" in output


def test_wrong_key_is_an_error_that_says_so() -> None:
    with StoreServer(KEY, job="test") as server:
        script = f"import os; os.environ['HOROVOD_SECRET_KEY'] = '{bytes(32).hex()}'" + EXITS_EARLY
        outputs = run_ranks(server, 2, script)
    assert "AuthenticationError" in outputs[0]
    assert "HOROVOD_SECRET_KEY must be the same" in outputs[0]


WITHOUT_OUR_LAUNCHER = """
import os
from horovod.runtime import lifecycle
from tests.unit.runtime.test_lifecycle import CORE
for _ in range(3):
    runtime = lifecycle.start(core=CORE)
    peers = runtime.engine.peers
    lifecycle.stop()
t = runtime.topology
os.write(1, f"{t.rank}/{t.size} {t.local_rank}/{t.local_size} {peers}\\n".encode())
"""


def run_without_our_launcher(command: list[str], home: Path, script: str) -> list[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    environ |= {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)]), "HOME": str(home)}
    done = subprocess.run(
        [*command, sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.skipif(shutil.which("mpirun", path=BINARIES) is None, reason="Open MPI is not installed")
def test_mpirun_starts_a_world_without_our_launcher(tmp_path: Path) -> None:
    mpirun = str(shutil.which("mpirun", path=BINARIES))
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3"]
    lines = [line.split(" ", 2) for line in run_without_our_launcher(command, tmp_path, WITHOUT_OUR_LAUNCHER)]
    assert [rank for rank, _, _ in lines] == ["0/3", "1/3", "2/3"]
    # Open MPI does not always number local ranks in the order of ranks; users see what it says.
    assert {local for _, local, _ in lines} == {"0/3", "1/3", "2/3"}
    assert [peers for _, _, peers in lines] == ["[1, 2]", "[0, 2]", "[0, 1]"]
    assert (tmp_path / ".config" / "farandole" / "key").exists()


LIKE_TORCHRUN = """
import os, subprocess, sys
job = {"TORCHELASTIC_RUN_ID": str(os.getpid()), "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
       "TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]],
         env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
sys.exit(max(rank.wait(40) for rank in ranks))
"""


def test_torchrun_starts_a_world_without_our_launcher(tmp_path: Path) -> None:
    launcher = [sys.executable, "-c", LIKE_TORCHRUN, WITHOUT_OUR_LAUNCHER]
    assert run_without_our_launcher(launcher, tmp_path, "") == ["0/2 0/2 [1]", "1/2 1/2 [0]"]


def test_a_store_is_served_to_the_end_though_no_world_was_formed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else rank 0, which knows first why there is none, would end before others have read it."""
    at_end: list[Callable[[], None]] = []
    monkeypatch.setattr(
        lifecycle, "atexit", SimpleNamespace(register=at_end.append, unregister=lambda _: None)
    )
    monkeypatch.setattr(lifecycle, "_current", lifecycle._Stopped())

    def fail(*_: object) -> None:
        raise RendezvousError("rank 1 has raised something")

    monkeypatch.setattr(lifecycle, "form", fail)
    environ = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    environ |= {
        "TORCHELASTIC_RUN_ID": str(tmp_path),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "HOROVOD_SECRET_KEY": KEY.hex(),
    }
    environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    with pytest.raises(RendezvousError):
        lifecycle.start(environ=environ, core=CORE)
    stopped = lifecycle._current
    assert isinstance(stopped, lifecycle._Stopped)
    assert stopped.meeting is not None
    place, key = stopped.meeting.place, stopped.meeting.key
    ending = threading.Thread(target=lambda: [handler() for handler in reversed(at_end)])
    with StoreClient(place.store, key, 5.0, "rank 1", job=place.job) as other:
        assert other.add("n") == 1
        ending.start()
        assert other.add("n") == 2
        assert ending.is_alive()
    ending.join(lifecycle._DRAIN_S / 2)
    assert not ending.is_alive()
    with pytest.raises(RendezvousError):
        StoreClient(place.store, key, 0.1, "rank 1", job=place.job)


def test_taken_port_of_rank_0_is_an_error_that_says_what_to_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        environ = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "x",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_SECRET_KEY": KEY.hex(),
        }
        with pytest.raises(ConfigError, match=f"Rank 0 on host .* cannot serve the store at {host}:{port}"):
            lifecycle.start(environ=environ, core=CORE)
    assert not lifecycle.is_initialized()
