"""An elastic launcher of the user's own: `ElasticDriver` decides, workers are processes that meet at a
`RendezvousServer`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horovod.errors import LaunchError
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.gloo_run import RendezvousServer, create_run_env_vars, create_slot_env_vars

RANK = Path(__file__).with_name("custom_elastic_rank.py")
LIMIT_S = 90.0
OF_A_JOB = ("HOROVOD_SECRET_KEY", "HOROVOD_JOB_ID", "HOROVOD_STORE")
pytestmark = pytest.mark.timeout(150)


def until(what: Callable[[], bool], driver: ElasticDriver) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert not driver.finished(), driver.get_results()
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)


class Processes:
    """Starts workers, and hears what they print."""

    def __init__(self, port: int, stop: Path) -> None:
        self.common = create_run_env_vars("127.0.0.1", ["lo"], port, elastic=True)
        self.stop = stop
        self.lines: list[tuple[int, int, int, int]] = []
        """Process, rank, size, step."""

    def run(self, slot: SlotInfo, events: list[threading.Event]) -> tuple[int, float]:
        bare = {name: os.environ[name] for name in ("PATH", "HOME")}
        process = subprocess.Popen(
            [sys.executable, str(RANK), str(self.stop)],
            env={**bare, **self.common, **create_slot_env_vars(slot)},
            stdout=subprocess.PIPE,
            text=True,
        )
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        while process.poll() is None:
            if any(event.wait(0.02) for event in events):
                process.terminate()
                process.wait(LIMIT_S)
        reader.join(LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()
        return process.returncode, time.time()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            pid, rank, size, step = map(int, line.split())
            self.lines.append((pid, rank, size, step))

    def sizes(self) -> list[int]:
        return [size for _, _, size, _ in self.lines]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RendezvousServer]:
    for name in (*OF_A_JOB, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    server = RendezvousServer()
    yield server
    server.stop()


def test_processes_come_and_go(
    server: RendezvousServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "horovod")  # if it fails, what the driver has said is shown
    hosts = FixedHosts({"localhost": 1})
    driver = ElasticDriver(server, hosts, min_num_proc=1, max_num_proc=2, timeout=60)
    processes = Processes(server.start(), tmp_path / "stop")
    try:
        driver.start(1, processes.run)
        until(lambda: 1 in processes.sizes(), driver)
        hosts.set({"localhost": 1, "127.0.0.1": 1})
        until(lambda: (1, 2) in [(rank, size) for _, rank, size, _ in processes.lines], driver)
        assert driver.world_size() == 2
        assert driver.has_rank_assignment("127.0.0.1", 0)
        client = driver.get_worker_client(driver.get_slot_info("localhost", 0))
        assert client is not None
        before = len(processes.lines)
        os.kill(next(pid for pid, rank, size, _ in processes.lines if (rank, size) == (1, 2)), signal.SIGKILL)
        until(lambda: 1 in processes.sizes()[before:], driver)
        assert driver.world_size() == 1
        assert not driver.has_rank_assignment("127.0.0.1", 0)
        client.notify_hosts_updated(int(time.time()) + 5, 1)  # a change that nobody else knows of
        (tmp_path / "stop").touch()
        results = driver.get_results()
        assert results.error_message is None
        assert {name: code for name, (code, _) in results.worker_results.items()} == {"localhost[0]": 0}
        steps = [step for _, rank, _, step in processes.lines if rank == 0]
        assert sorted(set(steps)) == list(range(1, steps[-1] + 1))
    finally:
        driver.stop()
        if driver.world_size():
            driver.get_results()


def test_a_server_that_is_not_started(server: RendezvousServer) -> None:
    driver = ElasticDriver(server, FixedHosts({"localhost": 1}), 1, 1)
    with pytest.raises(LaunchError, match="start\\(\\) first"):
        driver.start(1, lambda *_: (0, 0.0))
    driver.stop()
