"""Running ``horovodrun`` on simulated hosts. Every wait here has a limit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import COMMAND, environment

LIMIT_S = 60.0
PYTHON = sys.executable

# What every simulated host runs by itself.
_OF_THE_HOST = ("init.sh", "sleep 3600", "/usr/sbin/sshd -D", "sshd: ", "ps -", "AF_PACKET")


def slots(hosts: SimulatedHosts, *counts: int, first: int = 0) -> str:
    """The value of ``-H`` that places so many ranks on each host, beginning with number ``first``."""
    names = hosts.names[first:]
    return ",".join(f"{name}:{count}" for name, count in zip(names, counts, strict=False))


def horovodrun(
    hosts: SimulatedHosts,
    *words: str,
    host: int = 0,
    extra: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    first: Sequence[str] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Run it on a host to its end; ``first``: words before it."""
    return hosts.run(host, *first, *COMMAND, *words, extra=environment(extra), cwd=cwd, timeout_s=LIMIT_S)


class RunningJob:
    """A ``horovodrun`` under way, whose ranks print lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self._stdout = process.stdout

    def lines(self, count: int) -> list[str]:
        """The next lines of its output (pytest's time limit ends a wait in vain)."""
        found = []
        for _ in range(count):
            line = self._stdout.readline()
            assert line, "it has ended already"
            found.append(line.decode().rstrip("\n"))
        return found

    def by_rank(self, count: int) -> dict[int, str]:
        """The next line of each of ``count`` ranks, which print no more than that."""
        split = [line.partition("]<stdout>:") for line in self.lines(count)]
        return {int(head.lstrip("[")): text for head, _, text in split}

    def finish(self) -> tuple[int, str]:
        """Wait for its end; status and the rest of both its streams."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, rest.decode()


@contextmanager
def running(
    hosts: SimulatedHosts,
    *words: str,
    host: int = 0,
    extra: Mapping[str, str] | None = None,
    first: Sequence[str] = (),
) -> Iterator[RunningJob]:
    """Start it on a host; both its streams come as one. ``first``: words before it."""
    process = hosts.popen(host, *first, *COMMAND, *words, extra=environment(extra), stderr=subprocess.STDOUT)
    try:
        yield RunningJob(process)
    finally:
        if process.poll() is None:
            signal_processes(hosts, host, " ".join(COMMAND), signal.SIGKILL)  # the agents end the rest
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


def processes(hosts: SimulatedHosts, host: int) -> list[str]:
    """The command lines of what runs on a host, except what is always there."""
    listed = hosts.run(host, "ps", "-wweo", "pid=,args=").stdout.decode().splitlines()
    return [line.strip() for line in listed if not any(word in line for word in _OF_THE_HOST)]


def left_behind(hosts: SimulatedHosts, *numbers: int, timeout_s: float = 20.0) -> list[str]:
    """What still runs on these hosts (default: all) after ``timeout_s`` at most."""
    deadline = time.monotonic() + timeout_s
    chosen = numbers or range(len(hosts.names))
    while left := [process for number in chosen for process in processes(hosts, number)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)  # nothing tells that a process of another host has ended
    return left


def signal_processes(hosts: SimulatedHosts, host: int, pattern: str, signum: int) -> int:
    """Send a signal to the processes on a host whose command line begins with ``pattern``; how many."""
    found = []
    for line in processes(hosts, host):
        pid, _, command = line.partition(" ")
        if command.startswith(pattern):
            found.append(pid)
    if found:
        hosts.run(host, "kill", f"-{signum}", *found)
    return len(found)
