"""Worlds on simulated hosts that something happens to, and what their ranks say about it."""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.hosts.simulated import SimulatedHosts

__all__ = ["FailingRank", "FailingWorld"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    path = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class FailingRank:
    """One process on a host. Its lines are read by a thread, so that none of them waits for us."""

    def __init__(self, rank: int, host: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.host = host
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[bytes] = []
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode())
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    @property
    def errors(self) -> str:
        return b"".join(self._errors).decode(errors="replace")

    def pid(self) -> int:
        """Of the rank itself, as this machine counts: ``process`` only entered the host."""
        above = self.process.pid
        return int(Path(f"/proc/{above}/task/{above}/children").read_text().split()[0])

    def event(self, deadline: float) -> dict[str, Any] | None:
        """The next thing that it says; None if it has ended without a word, or the time is up."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said

    def end(self) -> None:
        """Kill it, however it is."""
        try:
            os.kill(self.pid(), signal.SIGKILL)
        except (OSError, IndexError):
            pass  # it has ended
        self.process.kill()
        self.process.wait(30)
        for thread in self._threads:
            thread.join(30)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def go(self) -> None:
        assert self.process.stdin is not None
        try:
            os.write(self.process.stdin.fileno(), b"\n")
        except BrokenPipeError:
            pass  # it has ended already


class FailingWorld:
    """A world with ``places[rank]`` as the host of each rank; a context manager that leaves nothing behind.

    Args:
        hosts: where.
        places: number of the host for each rank.
        phase: see ``failing_rank.py``.
        victim: the rank that stands still where the phase has one.
        launcher: the host that serves the store.
        settings: further variables, without ``HOROVOD_``.
    """

    def __init__(
        self,
        hosts: SimulatedHosts,
        places: Sequence[int],
        phase: str,
        victim: int,
        launcher: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.hosts = hosts
        self.places = list(places)
        self.phase = phase
        self.victim = victim
        self.launcher = launcher
        self.key = secrets.token_bytes(32).hex()
        self.job = secrets.token_hex(8)
        self.settings = {
            "HEARTBEAT_TIMEOUT_SECONDS": "3",
            "GLOO_TIMEOUT_SECONDS": "20",
            "START_TIMEOUT": "20",
            **(settings or {}),
        }
        self.store: FailingRank | None = None
        self.ranks: list[FailingRank] = []

    def __enter__(self) -> FailingWorld:
        return self

    def start(self, deadline: float) -> None:
        """Start all processes; does not wait for the ranks."""
        address = self.hosts.addresses[self.launcher]
        served = self.hosts.popen(
            self.launcher,
            sys.executable,
            str(FOLDER / "serve_store.py"),
            address,
            extra={**_environment(), "HOROVOD_SECRET_KEY": self.key, "HOROVOD_JOB_ID": self.job},
        )
        self.store = FailingRank(-1, self.launcher, served)
        port = self.store._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        assert port is not None, self.store.errors
        for rank, host in enumerate(self.places):
            process = self.hosts.popen(
                host,
                sys.executable,
                str(FOLDER / "failing_rank.py"),
                self.phase,
                extra=self._rank_environment(rank, address, port.strip()),
                stdin=subprocess.PIPE,
            )
            self.ranks.append(FailingRank(rank, host, process))

    def _rank_environment(self, rank: int, address: str, port: str) -> dict[str, str]:
        host = self.places[rank]
        mates = [other for other, place in enumerate(self.places) if place == host]
        said = {
            "RANK": rank,
            "SIZE": len(self.places),
            "LOCAL_RANK": mates.index(rank),
            "LOCAL_SIZE": len(mates),
            "HOSTNAME": self.hosts.names[host],
            "GLOO_RENDEZVOUS_ADDR": address,
            "GLOO_RENDEZVOUS_PORT": port,
            "SECRET_KEY": self.key,
            "JOB_ID": self.job,
            **self.settings,
        }
        return {
            **_environment(),
            **{f"HOROVOD_{name}": str(value) for name, value in said.items()},
            "FAILING_VICTIM": str(self.victim),
        }

    def await_ready(self, deadline: float) -> None:
        """All are in the phase; while the world is formed that is the victim alone."""
        for rank in self.ranks:
            if self.phase == "init" and rank.rank != self.victim:
                continue
            event = rank.event(deadline)
            assert event == {"event": "ready"}, f"rank {rank.rank}: {event}\n{rank.errors}"

    def go(self) -> None:
        for rank in self.ranks:
            rank.go()

    def ends(self, ranks: Sequence[int], deadline: float) -> dict[int, dict[str, Any]]:
        """How these ranks' worlds ended. A rank that says nothing until the deadline hangs."""
        found = {}
        for rank in ranks:
            event = self.ranks[rank].event(deadline)
            assert event is not None, f"rank {rank} hangs or died: {self.ranks[rank].errors}"
            assert event["event"] == "end", event
            found[rank] = event
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self.ranks, *([self.store] if self.store else [])]:
            process.end()
