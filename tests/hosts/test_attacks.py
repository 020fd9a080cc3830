"""A job is attacked from another host, and by another user of its own hosts; it does not notice.

Two attacks that are known from the original are among those played: requests to its services that execute
what they carry, and requests to its rendezvous server that give away the key and the peers.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.simulated import SimulatedHosts

import horovod

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
LIMIT_S = 60.0
RANKS = 4  # two on each of the first two hosts
STRANGER = 2  # the host that has no rank
NOBODY = 65534
FLOOD = 1000
LISTENING = "0A"
PYTHONPATH = os.pathsep.join([str(Path(horovod.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module")
def hosts(simulation: None) -> Iterator[SimulatedHosts]:
    with SimulatedHosts(3) as three:
        yield three


class Child:
    """A process on a host that speaks lines."""

    def __init__(
        self, hosts: SimulatedHosts, host: int, *words: str, extra: dict[str, str], log: Path
    ) -> None:
        self._log = log
        with log.open("wb") as errors:
            self.process = hosts.popen(
                host,
                sys.executable,
                *words,
                extra={"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", **extra},
                stdin=subprocess.PIPE,
                stderr=errors.fileno(),
            )
        self._unread = b""

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """The next line it says."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, left_s))
            assert ready, f"nothing in {LIMIT_S} s: {self._unread!r}\n{self._log.read_text()}"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, f"it ended: {self._unread!r}\n{self._log.read_text()}"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def finish(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LIMIT_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Job:
    """A store and ranks, all of which log what they can. The others listen for the last one, until it is told
    to come.
    """

    def __init__(self, hosts: SimulatedHosts, folder: Path) -> None:
        self.key = secrets.token_bytes(32)
        self.job = secrets.token_hex(8)
        self._hosts = hosts
        self._folder = folder
        self._environment = {"HOROVOD_SECRET_KEY": self.key.hex(), "HOROVOD_JOB_ID": self.job}
        log = folder / "store.log"
        self.store = Child(
            hosts, 0, str(HERE / "attacked_store.py"), hosts.addresses[0], extra=self._environment, log=log
        )
        self.ranks: list[Child] = []
        self._steps = 0
        self.port = int(self.store.line())

    def start(self, count: int) -> None:
        for _ in range(count):
            rank = len(self.ranks)
            place = {
                "RANK": rank,
                "SIZE": RANKS,
                "LOCAL_RANK": rank % 2,
                "LOCAL_SIZE": 2,
                "CROSS_RANK": rank // 2,
                "CROSS_SIZE": 2,
                "GLOO_RENDEZVOUS_ADDR": self._hosts.addresses[0],
                "GLOO_RENDEZVOUS_PORT": self.port,
                "LOG_LEVEL": "trace",
            }
            extra = self._environment | {f"HOROVOD_{name}": str(value) for name, value in place.items()}
            extra["ATTACKED_RANK_WAITS"] = str(RANKS - 1)
            log = self._folder / f"rank.{rank}.log"
            self.ranks.append(
                Child(self._hosts, rank // 2, str(HERE / "attacked_rank.py"), extra=extra, log=log)
            )

    def expect_formed(self) -> None:
        assert [rank.line() for rank in self.ranks] == ["formed"] * RANKS

    def step(self) -> None:
        """An allreduce with the right result on every rank."""
        for rank in self.ranks:
            rank.tell("go")
        expected = sum(rank + 1 + self._steps for rank in range(RANKS))
        assert [float(rank.line()) for rank in self.ranks] == [expected] * RANKS
        self._steps += 1

    def finish(self) -> None:
        assert [rank.finish() for rank in self.ranks] == [0] * RANKS
        assert self.store.finish() == 0

    def end(self) -> None:
        for child in (*self.ranks, self.store):
            child.end()

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def names_of_the_key(self) -> list[str]:
        raw = self.key
        return [raw.hex(), raw.hex().upper(), base64.b64encode(raw).decode(), repr(raw)[2:-1], str(list(raw))]


@pytest.fixture
def job(hosts: SimulatedHosts, tmp_path: Path) -> Iterator[Job]:
    made = Job(hosts, tmp_path)
    try:
        yield made
    finally:
        made.end()


def tcp_ports(hosts: SimulatedHosts, host: int) -> list[list[Any]]:
    """Address and port of everything that listens on that host, but for its own ssh server."""
    found: list[list[Any]] = []
    for line in hosts.run(host, "cat", "/proc/net/tcp").stdout.decode().splitlines()[1:]:
        words = line.split()
        address, port = words[1].split(":")
        if words[3] == LISTENING and int(port, 16) != 22:
            numbers = [str(byte) for byte in reversed(bytes.fromhex(address))]
            found.append([".".join(numbers), int(port, 16)])
    return found


def unix_names(hosts: SimulatedHosts, host: int) -> list[str]:
    """Abstract Unix sockets of that host that listen."""
    found = []
    for line in hosts.run(host, "cat", "/proc/net/unix").stdout.decode().splitlines()[1:]:
        words = line.split()
        if len(words) == 8 and words[7].startswith("@") and words[3] == "00010000":
            found.append(words[7][1:])
    return found


def wait_for_ports(hosts: SimulatedHosts, counts: Sequence[int]) -> list[list[Any]]:
    """The ports of the job, once so many of them listen on each host."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = [tcp_ports(hosts, host) for host in range(len(counts))]
        if all(len(ports) >= count for ports, count in zip(found, counts, strict=True)):
            return [port for ports in found for port in ports]
        assert time.monotonic() < deadline, found
        time.sleep(0.05)  # nothing tells when a port is opened


def order(hosts: SimulatedHosts, host: int, job: Job, **orders: Any) -> dict[str, Any]:
    """Let an attacker loose and hear its report."""
    done = subprocess.run(
        hosts.command(host, [sys.executable, str(HERE / "attacker.py")]),
        env={
            **os.environ,
            **hosts.environment,
            "PYTHONPATH": PYTHONPATH,
            "HOROVOD_JOB_ID": job.job,
        },
        input=json.dumps(orders).encode() + b"\n",
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def expect_no_way_in(report: dict[str, Any], canary: Path) -> None:
    """Nothing was executed, and nobody was told anything."""
    assert [each for each in report["replies"] if each[2]] == []
    assert not canary.exists()


def command_lines() -> str:
    """Of every process of all hosts: they are all seen from outside."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(found)


def test_an_attacked_job_forms_and_runs_as_if_nothing_were(
    hosts: SimulatedHosts, job: Job, tmp_path: Path
) -> None:
    canary = Path("/tmp") / f"farandole-canary-{secrets.token_hex(8)}"
    try:
        job.start(RANKS)  # now they wait, and everything that listens in a job's life listens
        ports = wait_for_ports(hosts, (3, 0))  # the higher rank dials
        assert {address for address, _ in ports} == {hosts.addresses[0]}, "only the interface in use"
        names = {host: unix_names(hosts, host) for host in range(2)}
        assert len([name for name in names[0] + names[1] if name.startswith("farandole-")]) >= RANKS - 1

        # From another host, and as another user of the job's own hosts.
        report = order(hosts, STRANGER, job, what="attack", targets=ports, canary=str(canary))
        assert report["said"] > 100 * len(ports) / 2
        expect_no_way_in(report, canary)
        for host in range(2):
            here = [*names[host], *tcp_ports(hosts, host)]
            report = order(hosts, host, job, what="attack", targets=here, canary=str(canary), user=NOBODY)
            expect_no_way_in(report, canary)

        # With the key, but for what nobody expects; with what others said before.
        store = [hosts.addresses[0], job.port]
        report = order(hosts, STRANGER, job, what="insider", targets=ports, store=store, key=job.key.hex())
        assert set(report["unexpected"]) == {""}
        assert set(report["guessed"]) == {""}
        assert b'"id":1' in bytes.fromhex(report["accepted"])
        assert report["replayed"] == ["", ""]

        # Connections that are held half-open, while the last rank comes.
        log = tmp_path / "flood.log"
        flood = Child(hosts, STRANGER, str(HERE / "attacker.py"), extra={}, log=log)
        try:
            flood.tell(json.dumps({"what": "flood", "targets": ports, "count": FLOOD}))
            assert json.loads(flood.line())["held"] >= FLOOD * len(ports) * 0.9
            job.ranks[-1].tell("come")
            job.expect_formed()
            job.step()
        finally:
            flood.end()

        # While it runs, only the store still listens.
        ports = wait_for_ports(hosts, (1, 0))
        assert ports == [store]
        for _ in range(2):
            report = order(hosts, STRANGER, job, what="attack", targets=ports, canary=str(canary))
            expect_no_way_in(report, canary)
            # It read enough to answer, and ended the connection in place of that.
            assert [ended for _, ended in report["judged"] if not ended] == []
            assert len(report["judged"]) > 50
            job.step()

        seen = command_lines()
        assert "attacked_rank.py" in seen
        pids = job_pids(hosts, 0)
        assert len(pids) == 3
        assert order(hosts, 0, job, what="look", pids=pids, user=NOBODY)["seen"] == []
        job.finish()
        for name in job.names_of_the_key():
            assert name not in seen
            assert name not in job.logs()
        assert not canary.exists()
    finally:
        canary.unlink(missing_ok=True)


def job_pids(hosts: SimulatedHosts, host: int) -> list[int]:
    """Processes of the job there, by that host's own numbers."""
    listed = hosts.run(host, "sh", "-c", "grep -l attacked_[rs] /proc/[0-9]*/cmdline").stdout.decode().split()
    return [int(path.split("/")[2]) for path in listed]
