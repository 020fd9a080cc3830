"""An elastic job under test, and what happens to it.

The test starts the real ``horovodrun`` with a discovery script that prints what it wants. Workers tell
over a socket at which point they are, and wait there for an answer: so a fault strikes at an exact point,
and a test knows where everybody is. Events of the job come through a pipe. All of it is read in
`ElasticJob.wait`, on the thread of the test; nothing sleeps.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from tests.elastic.link import ADDRESS_VARIABLE
from tests.launch.launching import COMMAND, PYTHON, environment

__all__ = ["ElasticJob", "Fault", "Hang", "Point", "ROOT", "Strike", "processes_of"]

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
"""For what takes a second or two on an idle machine."""

GONE_LIMIT_S = 10.0


class Hang(AssertionError):
    """Something did not happen within its limit."""


@dataclass(frozen=True)
class Point:
    """Where a worker is: its number, the ``time`` on the monotonic clock, and facts of the program."""

    name: str
    worker: int
    time: float
    facts: Mapping[str, Any]

    def __getitem__(self, fact: str) -> Any:
        return self.facts.get(fact)


Match = Callable[[Point], bool]


@dataclass
class Fault:
    """What is done once, to the first worker that is at ``point`` and whose facts are ``where``.

    Attributes:
        do: ``kill``, ``stop``, ``raise``, ``end`` (with success), or ``hold`` until `ElasticJob.release`.
    """

    do: str
    point: str
    where: Mapping[str, Any] = field(default_factory=dict)
    when: Match = lambda point: True
    times: int = 1

    def fits(self, point: Point) -> bool:
        facts = {**point.facts, "worker": point.worker}
        return (
            self.times > 0
            and point.name == self.point
            and all(facts.get(name) == value for name, value in self.where.items())
            and self.when(point)
        )


@dataclass(frozen=True)
class Strike:
    """A fault that has happened."""

    do: str
    point: Point
    time: float


@dataclass(eq=False)
class _Worker:
    connection: socket.socket
    unread: bytes = b""
    number: int = -1
    pid: int = 0
    host: str = ""
    at: Point | None = None
    held: Point | None = None


class ElasticJob:
    """A ``horovodrun`` under way; a context manager, which ends it and looks for what it has left behind.

    Args:
        folder: of this job alone.
        program: words of the command after ``python``.
        hosts: what discovery says first.
        options: of ``horovodrun``. ``-np`` is among them.
        extra: further variables.
        fixed: no discovery script: the hosts are in the options.
        answers: what discovery does first, in a shell, in place of saying ``hosts``.
        below: words of a command whose further words are the one that it runs, as a child.
        limit_s: for the whole job.

    Attributes:
        events: of the launcher, as they came.
        points: where workers were, as they came; but those in ``quiet``.
        strikes: faults that have happened.
        policy: asked for an answer at every point that no fault fits.
    """

    quiet: frozenset[str] = frozenset()

    def __init__(
        self,
        folder: Path,
        program: Sequence[str],
        hosts: Mapping[str, int],
        *options: str,
        extra: Mapping[str, str] | None = None,
        fixed: bool = False,
        answers: str | None = None,
        below: Sequence[str] = (),
        limit_s: float = 120.0,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.points: list[Point] = []
        self.strikes: list[Strike] = []
        self.faults: list[Fault] = []
        self.policy: Callable[[Point], str] | None = None
        self.hosts: dict[str, int] = {}
        self.status: int | None = None
        self.lost: list[int] = []
        """Workers whose connection has ended."""
        self.folder = folder
        self._deadline = time.monotonic() + limit_s
        self._workers: dict[int, _Worker] = {}
        self._unread_events = b""
        folder.mkdir(parents=True, exist_ok=True)
        self._answer = folder / "discovered"
        self.offer(hosts)
        if answers is not None:
            self.discovery(answers)
        script = folder / "discover"
        script.write_text(f"#!/bin/sh\n. {shlex.quote(str(self._answer))}\n")
        script.chmod(0o755)
        self.name = f"farandole-injector-{uuid.uuid4().hex}"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind("\0" + self.name)
        self._server.listen(64)
        fifo = folder / "events"
        os.mkfifo(fifo)
        self._events = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        found = () if fixed else ("--host-discovery-script", str(script))
        variables = environment(extra)
        variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), variables["PYTHONPATH"]])
        self._output = folder / "output"
        self._environment = {**variables, ADDRESS_VARIABLE: self.name}
        self._selector = selectors.DefaultSelector()
        self._start(*options, *found, "--elastic-events", str(fifo), *below, PYTHON, *program)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._selector.register(self._events, selectors.EVENT_READ, self._read_events)

    def _start(self, *words: str) -> None:
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [*COMMAND, *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._ended = os.pidfd_open(self.process.pid)
        self._selector.register(self._ended, selectors.EVENT_READ, self._end)

    # -- what the test does ---------------------------------------------------------------------------------

    def offer(self, hosts: Mapping[str, int]) -> None:
        """Discovery says these hosts from now on; it is asked each second."""
        self.hosts = dict(hosts)
        self.discovery(self.hosts_script)

    @property
    def hosts_script(self) -> str:
        """What makes discovery say the hosts that were offered last."""
        return "".join(f"echo {name}:{slots}\n" for name, slots in self.hosts.items())

    def discovery(self, script: str) -> None:
        """Discovery does this from now on, in a shell."""
        whole = self._answer.with_suffix(".new")
        whole.write_text(script or ":\n")
        whole.rename(self._answer)

    def inject(
        self, do: str, point: str, *, when: Match | None = None, times: int = 1, **where: Any
    ) -> Fault:
        """Have a `Fault` happen."""
        fault = Fault(do, point, where, when or (lambda point: True), times)
        self.faults.append(fault)
        return fault

    def release(self, worker: int, do: str = "go") -> None:
        """Answer a worker that is held."""
        held = self._workers[worker]
        assert held.held is not None, f"worker {worker} is not held"
        point, held.held = held.held, None
        self._reply(held, point, do)

    def signal(self, worker: int, signum: int) -> None:
        """Send a signal, now."""
        os.kill(self._workers[worker].pid, signum)

    def kill(self, worker: int) -> None:
        """Kill a worker, now."""
        with suppress(ProcessLookupError):
            os.kill(self._workers[worker].pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill ``horovodrun``, now; `resume` may follow."""
        self._selector.unregister(self._ended)
        self.process.kill()
        self.process.wait()
        os.close(self._ended)
        self._ended = -1

    def resume(self, state: Path) -> None:
        """Start ``horovodrun --resume``."""
        self._start("--resume", str(state))

    def resume_beside(self, state: Path) -> tuple[int, str]:
        """Have another ``horovodrun --resume``, though one runs; its status and what it prints."""
        done = subprocess.run(
            [*COMMAND, "--resume", str(state)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
            text=True,
        )
        return done.returncode, done.stdout

    def pass_time(self, seconds: float) -> None:
        """Serve the job for so long."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._serve(left_s)

    def kill_host(self, host: str) -> list[int]:
        """Kill all workers of a host at once; returns them."""
        here = [each for each in self._workers.values() if each.host == host]
        for each in here:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        return [each.number for each in here]

    # -- what the test sees ---------------------------------------------------------------------------------

    def wait(self, done: Callable[[], Any], what: str, within_s: float = LIMIT_S) -> Any:
        """Serve the job until ``done()`` is true; returns that.

        Raises:
            Hang: not within ``within_s``, or not before the job has ended.
        """
        deadline = min(time.monotonic() + within_s, self._deadline)
        while not (result := done()):
            if self.status is not None:
                self._drain_events()
                if result := done():
                    return result
                raise Hang(f"the job ended (status {self.status}) before {what}\n{self.story()}")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise Hang(f"not within {within_s:g} s: {what}\n{self.story()}")
            self._serve(left_s)
        return result

    def watch(self, done: Callable[[], Any], within_s: float = LIMIT_S) -> None:
        """Serve the job until something is true that nobody tells of, such as a file that is there."""
        deadline = time.monotonic() + within_s
        while not done():
            if time.monotonic() > deadline:
                self.fail("in vain")
            self._serve(0.02)

    def poll(self, at_most_s: float) -> None:
        """Serve the job once.

        Raises:
            Hang: its time is over.
        """
        if time.monotonic() > self._deadline:
            raise Hang(f"the job takes too long\n{self.story()}")
        self._serve(at_most_s)

    def fail(self, why: str) -> NoReturn:
        """Raise ``AssertionError`` with all that is known."""
        raise AssertionError(f"{why}\n{self.story()}")

    def _serve(self, at_most_s: float) -> None:
        for key, _ in self._selector.select(at_most_s):
            key.data()

    def finish(self, within_s: float = LIMIT_S) -> int:
        """Serve the job until it has ended; returns its status. Looks for what is left behind."""
        self.wait(lambda: self.status is not None, "its end", within_s)
        assert self.status is not None
        self._drain_events()
        self.look_for_rest()
        return self.status

    def look_for_rest(self) -> None:
        """Raise ``AssertionError`` if a process of this job is left, now and some seconds later."""
        deadline = time.monotonic() + GONE_LIMIT_S
        while (left := processes_of(self.name)) and time.monotonic() < deadline:
            time.sleep(0.02)  # nothing tells that a process of others has ended
        assert not left, f"left behind: {left}\n{self.story()}"

    def happened(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Events with this name and these fields, so far."""
        return [
            each
            for each in self.events
            if each["event"] == event and all(each.get(name) == value for name, value in fields.items())
        ]

    def been(self, point: str, **facts: Any) -> list[Point]:
        """Points with this name and these facts that workers have been at, so far."""
        return [
            each
            for each in self.points
            if each.name == point
            and all({**each.facts, "worker": each.worker}.get(k) == v for k, v in facts.items())
        ]

    def until_event(
        self, event: str, count: int = 1, within_s: float = LIMIT_S, **fields: Any
    ) -> dict[str, Any]:
        """Serve the job until there were so many such events; returns the last one."""
        what = f"{count} x event {event} {fields}"
        self.wait(lambda: len(self.happened(event, **fields)) >= count, what, within_s)
        return self.happened(event, **fields)[count - 1]

    def until_point(self, point: str, count: int = 1, within_s: float = LIMIT_S, **facts: Any) -> Point:
        """Serve the job until workers were at such a point so often; returns the last one."""
        what = f"{count} x point {point} {facts}"
        self.wait(lambda: len(self.been(point, **facts)) >= count, what, within_s)
        return self.been(point, **facts)[count - 1]

    @property
    def worlds(self) -> list[dict[str, Any]]:
        """Events of worlds that were formed."""
        return self.happened("world")

    @property
    def world(self) -> dict[int, int]:
        """Workers of the present world by rank; empty before the first."""
        worlds = self.worlds
        return {each["rank"]: each["worker"] for each in worlds[-1]["members"]} if worlds else {}

    @property
    def held(self) -> list[int]:
        """Workers that are held."""
        return [worker.number for worker in self._workers.values() if worker.held is not None]

    @property
    def living(self) -> list[int]:
        """Workers that are connected."""
        return sorted(self._workers)

    def pid_of(self, worker: int) -> int:
        return self._workers[worker].pid

    def host_of(self, worker: int) -> str:
        return self._workers[worker].host

    @property
    def text(self) -> str:
        """What ``horovodrun`` has printed."""
        return self._output.read_text(errors="replace")

    def story(self) -> str:
        """What has happened, for the message of a failure."""
        events = "\n".join(
            f"  {each['at']:.3f} {each['event']}: {each['text']}" for each in self.events[-60:]
        )
        faults = "\n".join(f"  {each.do} at {each.point}" for each in self.strikes[-20:])
        where = "\n".join(
            f"  {worker.at}{' (held)' if worker.held else ''}" for worker in self._workers.values()
        )
        printed = self.text[-6000:]
        return f"events\n{events}\nfaults\n{faults}\nconnected\n{where}\nprinted\n{printed}"

    # -- parts ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        worker = _Worker(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(worker))

    def _hear(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(worker.connection)
            worker.connection.close()
            self._workers.pop(worker.number, None)
            self.lost.append(worker.number)
            return
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for line in lines:
            facts = json.loads(line)
            name, at = facts.pop("point"), facts.pop("time")
            if name == "start":
                worker.number, worker.pid = facts["worker"], facts["pid"]
                worker.host = facts["host"]
                self._workers[worker.number] = worker
            self._arrive(worker, Point(name, worker.number, at, facts))

    def _arrive(self, worker: _Worker, point: Point) -> None:
        worker.at = point
        if point.name not in self.quiet:
            self.points.append(point)
        self._drain_events()  # what has led to this point was written before
        fault = next((fault for fault in self.faults if fault.fits(point)), None)
        if fault is not None:
            fault.times -= 1
            do = fault.do
        else:
            do = self.policy(point) if self.policy is not None else "go"
        self._reply(worker, point, do)

    def _reply(self, worker: _Worker, point: Point, do: str) -> None:
        if do == "hold":
            worker.held = point
            return
        if do != "go":
            self.strikes.append(Strike(do, point, time.monotonic()))
        with suppress(BrokenPipeError, ConnectionResetError):  # it has been killed meanwhile
            worker.connection.sendall(do.encode() + b"\n")

    def _read_events(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._events, 1 << 16):
                *lines, self._unread_events = (self._unread_events + data).split(b"\n")
                self.events += map(json.loads, lines)

    _drain_events = _read_events

    def _end(self) -> None:
        self.status = self.process.wait()
        self._selector.unregister(self._ended)

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.connection.close()
        self._selector.close()
        self._server.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._ended >= 0:
            os.close(self._ended)
        os.close(self._events)
        for pid in processes_of(self.name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_of(name: str) -> dict[int, str]:
    """Command lines of the processes whose environment has this injector, by process id; no zombies."""
    mark = f"{ADDRESS_VARIABLE}={name}".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not re.fullmatch("[0-9]+", entry):
            continue
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry)] = line.decode(errors="replace").strip()
    return found
