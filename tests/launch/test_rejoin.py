"""A launcher is killed, and another one goes on with its hosts and workers."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.fleets import LIMIT_S, RunningFleet, fleet_of
from tests.launch.launching import WAIT, Watched
from tests.launch.test_agent import OPEN, agent, line

from horovod.bootstrap.place.proc import lines, stat_of
from horovod.launch.agent.terms import MOST_KEPT_BYTES
from horovod.launch.contracts.events import Exited, Gone, HostReached, Rejoined, Started
from horovod.launch.contracts.fleet import FleetWorker
from horovod.launch.launchers.fleet import reconnect_socket

pytestmark = pytest.mark.timeout(3 * LIMIT_S)


def abandon(
    secret: str, count: int, do: str, patience_s: float = 60.0, *, stopped: bool = False
) -> list[int]:
    """A launcher starts so many workers and is killed; their process ids. ``stopped``: it has stopped the
    agent before, which goes on with SIGCONT.
    """
    words = [secret, str(patience_s), str(count), do, *(["stopped"] if stopped else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.launch.abandoned_fleet", *words],
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == -signal.SIGKILL
    return [int(line) for line in done.stdout.split()]


def agent_waits(secret: str, host: str = "here") -> bool:
    """True if an agent listens at the reconnect socket of this host."""
    return any(line.endswith(f"@{reconnect_socket(secret, host)}") for line in lines("/proc/net/unix"))


def await_end_of_agent(secret: str) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while agent_waits(secret):  # nothing tells when it closes its socket
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def rejoin(running: RunningFleet, count: int, host: str = "here") -> Rejoined:
    running.fleet.rejoin(host, [FleetWorker(number, host, {}, number) for number in range(count)])
    running.await_event(HostReached)
    return running.await_event(Rejoined)


def test_workers_outlive_their_launcher_and_obey_the_next_one() -> None:
    secret = secrets.token_hex()
    pids = abandon(secret, 2, f"echo ready; {WAIT}")
    with Watched(*pids) as watched, fleet_of("unused", patience_s=60.0, secret=secret) as running:
        assert watched.still_running(0.0) == pids
        assert rejoin(running, 2) == Rejoined("here", ())
        assert [event.pid for event in running.seen if isinstance(event, Started)] == pids
        assert watched.still_running(0.0) == pids
        running.fleet.end([1], signal.SIGTERM)
        assert running.exited(1) == Exited(1, -signal.SIGTERM, told=True)
        assert running.gone(1) == Gone(1)
        third = running.start(2, DO="exit 5")
        assert third not in pids
        assert running.exited(2) == Exited(2, 5)
        assert watched.still_running(0.0) == pids[:1]
        assert running.finish().survivors == ()
        assert watched.still_running(LIMIT_S) == []


def test_what_happened_while_nobody_was_there_is_told(tmp_path: Path) -> None:
    secret = secrets.token_hex()
    gate = tmp_path / "gate"
    wait = f"while ! test -e {gate}; do sleep 0.02; done"
    pids = abandon(secret, 2, f"echo ready; {wait}; echo last words; exit 7")
    gate.touch()
    with Watched(*pids) as watched:
        assert watched.still_running(LIMIT_S) == []
    with fleet_of("unused", patience_s=60.0, secret=secret) as running:
        assert rejoin(running, 3) == Rejoined("here", (2,))
        for number in range(2):
            assert running.exited(number) == Exited(number, 7)
            assert running.gone(number) == Gone(number)
            running.printed(f"[{number}]<stdout>:last words\n")


def test_last_words_that_the_agent_reads_before_it_knows_are_told(tmp_path: Path) -> None:
    """It notices the end of its launcher and that of its workers at the same time."""
    secret = secrets.token_hex()
    gate = tmp_path / "gate"
    wait = f"while ! test -e {gate}; do sleep 0.02; done"
    pids = abandon(secret, 2, f"echo ready; {wait}; echo last words; exit 7", stopped=True)
    agents = {stat.parent for pid in pids if (stat := stat_of(pid))}
    gate.touch()
    try:
        with Watched(*pids) as watched:
            assert watched.still_running(LIMIT_S) == []
    finally:
        for each in agents:
            os.kill(each, signal.SIGCONT)
    with fleet_of("unused", patience_s=60.0, secret=secret) as running:
        assert rejoin(running, 2) == Rejoined("here", ())
        for number in range(2):
            assert running.exited(number) == Exited(number, 7)
            assert running.gone(number) == Gone(number)
            running.printed(f"[{number}]<stdout>:last words\n")


def test_a_worker_may_print_more_than_there_is_room_for(tmp_path: Path) -> None:
    secret = secrets.token_hex()
    gate = tmp_path / "gate"
    wait = f"while ! test -e {gate}; do sleep 0.02; done"
    (pid,) = abandon(secret, 1, f"echo ready; {wait}; yes {'y' * 99} | head -c 40000000; exit 0")
    gate.touch()
    with Watched(pid) as watched:
        assert watched.still_running(LIMIT_S) == []  # nobody reads, and it does not wait for that
    with fleet_of("unused", patience_s=60.0, secret=secret) as running:
        rejoin(running, 1)
        assert running.exited(0) == Exited(0, 0)
        assert running.gone(0) == Gone(0)
        shown = running.stdout.getvalue().count("yyyy\n")
        assert MOST_KEPT_BYTES * 0.9 < shown * 100 <= MOST_KEPT_BYTES
        assert "host here had no room for " in running.stderr.getvalue()


def test_nobody_comes_in_time() -> None:
    pids = abandon(secrets.token_hex(), 2, f"echo ready; {WAIT}", patience_s=1.0)
    began = time.monotonic()
    with Watched(*pids) as watched:
        assert watched.still_running(LIMIT_S) == []
    assert time.monotonic() - began > 0.5


def test_a_launcher_that_comes_too_late_hears_that_the_host_is_lost() -> None:
    with fleet_of("unused", patience_s=60.0, secret=secrets.token_hex()) as running:
        running.fleet.rejoin("here", [FleetWorker(0, "here", {}, 0)])
        lost = running.lost()
        assert lost.ranks == (0,)
        assert "its agent has ended" in lost.reason


def test_a_host_without_workers_is_reached_whether_its_agent_waits_or_not() -> None:
    secret = secrets.token_hex()
    with fleet_of("unused", patience_s=60.0, secret=secret) as running:
        assert rejoin(running, 0).missing == ()  # there has never been any
    abandon(secret, 1, "echo ready")
    assert agent_waits(secret)
    with fleet_of("sh", "-c", 'eval "$DO"', patience_s=60.0, secret=secret) as running:
        assert rejoin(running, 0).missing == ()
        running.start(0, DO="exit 3")
        assert running.exited(0) == Exited(0, 3)
        assert running.finish().survivors == ()
    await_end_of_agent(secret)


def test_a_former_agent_ends_with_a_job_that_ends_before_it_is_reached() -> None:
    secret = secrets.token_hex()
    abandon(secret, 1, "echo ready")
    with fleet_of("unused", patience_s=60.0, secret=secret) as running:
        running.fleet.rejoin("here", [])
        assert running.finish().survivors == ()
    await_end_of_agent(secret)


def test_a_host_that_is_reached_anew_ends_what_the_former_agent_has() -> None:
    secret = secrets.token_hex()
    pids = abandon(secret, 2, f"echo ready; {WAIT}")
    assert all(stat_of(pid) for pid in pids)
    with (
        Watched(*pids) as watched,
        fleet_of("sh", "-c", 'eval "$DO"', patience_s=60.0, secret=secret) as running,
    ):
        running.reach()
        running.start(0, DO=WAIT)
        assert watched.still_running(LIMIT_S) == []


@contextmanager
def told_again(*command: str, after: str, taken: int = 0) -> Iterator[bytes]:
    """What an agent with one rank says to another launcher, which comes after the first one has heard of
    ``after`` and has taken nothing; this one takes so many bytes and ends the job."""
    name = f"farandole-test-{secrets.token_hex(8)}"
    with agent() as one:
        one.say(line({**OPEN, "command": command, "reconnect": name, "patience_s": 30.0}))
        one.say(line({"start": [{"rank": 0, "environment": {}}]}))
        assert one.hear(after)
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(LIMIT_S)
            other.connect(f"\0{name}")
            heard = b""
            while b"caught_up" not in heard:
                heard += other.recv(1 << 16)
            yield heard
            other.sendall(line({"taken": taken}) + line({"end": signal.SIGTERM}))
            while b"finished" not in heard:
                heard += other.recv(1 << 16)


def test_what_the_lost_launcher_had_not_taken_is_said_again() -> None:
    with told_again("sh", "-c", "echo first; sleep 60", after="output", taken=len("first\n")) as heard:
        events = [json.loads(each)["event"] for each in heard.splitlines() if each.startswith(b"{")]
    assert [each for each in events if each != "beat"] == ["attached", "output", "started", "caught_up"]
    assert b"first\n" in heard


def test_last_words_that_the_lost_launcher_had_not_taken_come_before_the_end() -> None:
    words = line({"event": "last words"})  # reads like one, so `hear` leaves it out
    with told_again("echo", words.decode().rstrip(), after="gone", taken=len(words)) as heard:
        assert 0 < heard.find(words) < heard.index(b'"gone"')
