"""A fleet on several hosts: hosts that disappear and come back, and nothing of theirs is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.jobs import LIMIT_S, PYTHON, left_behind, processes, signal_processes
from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import environment

pytestmark = pytest.mark.timeout(3 * LIMIT_S)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"{PYTHON} -m tests.hosts.fleet_job"
TREE = "(setsid sleep 1000 &) ; exec sleep 1000"


@pytest.fixture(autouse=True)
def nothing_is_left(two_hosts: SimulatedHosts) -> Iterator[None]:
    yield
    assert left_behind(two_hosts) == []


class Job:
    """The program `fleet_job` on host 0."""

    def __init__(self, hosts: SimulatedHosts, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []
        self._hosts = hosts
        self._unread = b""
        self._events: list[dict[str, Any]] = []

    def say(self, **request: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, event: str, **fields: object) -> dict[str, Any]:
        """The next event like that; those before it stay."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for index, one in enumerate(self._events):
                if one.get("event") == event and fields.items() <= one.items():
                    return self._events.pop(index)
            self._read(deadline)

    def reach(self, host: int = 1) -> None:
        self.say(reach=self._hosts.names[host])
        self.hear("HostReached", host=self._hosts.names[host])

    def start(self, number: int, host: int = 1, do: str = TREE) -> None:
        self.say(start=number, host=self._hosts.names[host], do=do)
        self.hear("Started", rank=number)

    def lost(self, host: int = 1) -> dict[str, Any]:
        return self.hear("HostLost", host=self._hosts.names[host])

    def finish(self) -> dict[str, Any]:
        self.say(finish=int(signal.SIGTERM))
        return self.hear("Finished")

    def _read(self, deadline: float) -> None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came but {self._events}"
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        assert data, f"it has ended after {self._events}"
        *lines, self._unread = (self._unread + data).split(b"\n")
        heard = [json.loads(line) for line in lines]
        self._events += heard
        self.seen += heard


@contextmanager
def fleet(hosts: SimulatedHosts) -> Iterator[Job]:
    process = hosts.popen(
        0, *PROGRAM.split(), extra=environment(), cwd=ROOT, stdin=subprocess.PIPE, stderr=None
    )
    try:
        yield Job(hosts, process)
    finally:
        if process.poll() is None:
            signal_processes(hosts, 0, PROGRAM, signal.SIGKILL)  # the agents end the rest
        process.wait(LIMIT_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def test_workers_come_and_go_on_both_hosts(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        for host in (0, 1):
            job.reach(host)
            job.start(2 * host, host)
            job.start(2 * host + 1, host)
        job.say(end=3, signum=int(signal.SIGTERM))
        assert job.hear("Exited", rank=3)["told"] is True
        job.hear("Gone", rank=3)
        assert len([line for line in processes(two_hosts, 1) if "sleep 1000" in line]) == 2
        job.start(4, 1, "exit 9")
        assert job.hear("Exited", rank=4)["exit_code"] == 9
        assert job.finish()["survivors"] == []


def test_a_host_that_is_cut_off_is_lost_and_comes_back(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        job.reach(0)
        job.reach(1)
        job.start(0, 0)
        job.start(1, 1)
        two_hosts.cut(1)
        try:
            lost = job.lost()
            assert lost["ranks"] == [1]
            assert "nothing has been heard" in lost["reason"]
            assert left_behind(two_hosts, 1) == []  # it cleans up without us
            job.say(reach=two_hosts.names[1])
            why = job.lost()
            assert why["ranks"] == []
            assert "no answer within" in why["reason"] or "ssh failed" in why["reason"]
        finally:
            two_hosts.mend(1)
        job.reach(1)
        job.start(2, 1, "exit 3")
        assert job.hear("Exited", rank=2)["exit_code"] == 3
        assert not any(one.get("event") == "Exited" and one["rank"] == 0 for one in job.seen)
        job.finish()


def test_a_host_that_is_powered_off_comes_back_when_it_has_booted(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        job.reach(1)
        job.start(0)
        two_hosts.power_off(1)
        try:
            assert job.lost()["ranks"] == [0]
        finally:
            two_hosts.boot(1)
        job.reach(1)
        job.start(1, do="exit 0")
        job.hear("Gone", rank=1)


def test_a_host_that_is_killed_is_lost_at_once_and_comes_back(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        job.reach(1)
        job.start(0)
        began = time.monotonic()
        two_hosts.kill(1)
        try:
            assert job.lost()["ranks"] == [0]
            assert time.monotonic() - began < 3.0
        finally:
            two_hosts.boot(1)
        job.reach(1)
        job.start(1, do="exit 0")
        job.hear("Gone", rank=1)


def test_a_host_that_is_dropped_while_its_connection_is_stalled(two_hosts: SimulatedHosts) -> None:
    name = two_hosts.names[1]
    with fleet(two_hosts) as job:
        job.reach(1)
        job.start(0)
        two_hosts.cut(1)
        try:
            job.say(drop=name)
            job.say(reach=name)
            # It is tried again when the former connection is given up, and in vain.
            assert job.lost()["ranks"] == []
            assert left_behind(two_hosts, 1) == []
        finally:
            two_hosts.mend(1)
        job.reach(1)
        job.start(1, do="exit 0")
        job.hear("Gone", rank=1)
        assert [one["rank"] for one in job.seen if one.get("event") == "Exited"] == [1]


def test_a_paused_host_does_not_hold_up_the_end(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        job.reach(0)
        job.reach(1)
        job.start(0, 0)
        job.start(1, 1)
        two_hosts.pause(1)
        try:
            began = time.monotonic()
            job.finish()
            assert time.monotonic() - began < 12.0
        finally:
            two_hosts.resume(1)


def test_workers_end_with_their_launcher(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        for host in (0, 1):
            job.reach(host)
            job.start(host, host)
        assert signal_processes(two_hosts, 0, PROGRAM, signal.SIGKILL)
        job.process.wait(LIMIT_S)
        assert left_behind(two_hosts) == []


def test_a_host_that_is_not_there_is_told_once_with_the_reason(two_hosts: SimulatedHosts) -> None:
    with fleet(two_hosts) as job:
        job.say(reach="unknown.host.invalid")
        lost = job.hear("HostLost", host="unknown.host.invalid")
        assert lost["ranks"] == []
        assert "Could not resolve" in lost["reason"]
        job.finish()
        assert len([one for one in job.seen if one.get("event") == "HostLost"]) == 1
