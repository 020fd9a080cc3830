"""Fleets in tests: events are awaited with a limit, and whatever happens, nothing is left at the end."""

from __future__ import annotations

import io
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.launch.launching import environment

from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.launch.contracts.events import (
    Event,
    Exited,
    Finished,
    Gone,
    HostLost,
    HostReached,
    Refused,
    Started,
)
from horovod.launch.contracts.fleet import Fleet, FleetPlan, FleetWorker, Request
from horovod.launch.contracts.job import Job, SshOptions
from horovod.launch.contracts.registry import LAUNCHERS, make_fleet
from horovod.launch.contracts.signals import Signals
from horovod.launch.environment import Limits
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import Output

LIMIT_S = 20.0
T = TypeVar("T")


class RunningFleet:
    """A fleet, its output, and the events that nobody has asked for yet."""

    def __init__(self, fleet: Fleet, output: Output, stdout: io.StringIO, stderr: io.StringIO) -> None:
        self.fleet = fleet
        self.output = output
        self.seen: list[Event] = []
        self.stdout = stdout
        self.stderr = stderr
        self._unread: list[Event] = []

    @property
    def unread(self) -> list[Event]:
        """Events that have come and that nobody has asked for."""
        return self._unread

    def read(self, limit_s: float = LIMIT_S) -> None:
        """Take in what comes next."""
        assert select.select([self.fleet], [], [], max(0.0, limit_s))[0], f"nothing came but {self._unread}"
        events = self.fleet.events()
        self.seen += events
        self._unread += events

    def await_event(
        self, kind: type[T], fits: Callable[[T], bool] = lambda _: True, limit_s: float = LIMIT_S
    ) -> T:
        """The next event of this kind that fits; those before it stay."""
        deadline = time.monotonic() + limit_s
        while True:
            for index, event in enumerate(self._unread):
                if isinstance(event, kind) and fits(event):
                    del self._unread[index]
                    return event
            self.read(deadline - time.monotonic())

    def reach(self, host: str = "here") -> HostReached:
        self.fleet.reach(host)
        return self.await_event(HostReached, lambda event: event.host == host)

    def lost(self, host: str = "here", limit_s: float = LIMIT_S) -> HostLost:
        return self.await_event(HostLost, lambda event: event.host == host, limit_s)

    def start(self, number: int, host: str = "here", label: int | None = None, **own: str) -> int:
        """Start it; its process id."""
        self.begin(number, host, label, **own)
        return self.await_event(Started, lambda event: event.rank == number).pid

    def begin(self, number: int, host: str = "here", label: int | None = None, **own: str) -> None:
        self.fleet.start(FleetWorker(number, host, own, number if label is None else label))

    def exited(self, number: int) -> Exited:
        return self.await_event(Exited, lambda event: event.rank == number)

    def refused(self, number: int) -> Refused:
        return self.await_event(Refused, lambda event: event.rank == number)

    def gone(self, number: int) -> Gone:
        return self.await_event(Gone, lambda event: event.rank == number)

    def finish(self, signum: int = signal.SIGTERM) -> Finished:
        self.fleet.finish(signum)
        return self.await_event(Finished)

    def printed(self, text: str) -> None:
        """Wait until this is shown."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.stdout.getvalue():
            assert time.monotonic() < deadline, f"{text!r} is not in {self.stdout.getvalue()!r}"
            time.sleep(0.005)  # nothing tells when a text is written


@contextmanager
def fleet_of(
    *command: str,
    launcher: str = "local",
    variables: Mapping[str, str] | None = None,
    call: Sequence[memoryview] = (),
    directory: Path | None = None,
    silence_s: float = 5.0,
    start_s: float = LIMIT_S,
    ssh: SshOptions | None = None,
    patience_s: float = 0.0,
    secret: str = "",
) -> Iterator[RunningFleet]:
    """One whose workers run this command."""
    inherited = {**os.environ, **environment(variables)}
    stdout, stderr = io.StringIO(), io.StringIO()
    console = Console(stdout=stdout, stderr=stderr)
    limits = Limits(start_s, silence_s, 0.0)
    job = Job(command=command, processes=1, launcher=launcher, ssh=ssh or SshOptions())
    with (
        Signals() as signals,
        Status(console, wanted=False, hosts=0, ranks=0) as status,
        StoreServer(bytes(32), unix.fresh_name()) as store,  # such a fleet does without
    ):
        request = Request(job, (), (), (), False, inherited, limits, signals, console, status)
        output = Output(10, console, directory=directory)
        plan = FleetPlan(command, environment(variables), call, patience_s, secret)
        fleet = make_fleet(LAUNCHERS[launcher], request, plan, output, store)
        try:
            output.start()
            yield RunningFleet(fleet, output, stdout, stderr)
        finally:
            fleet.kill()
            fleet.close()
            give_up_at = time.monotonic() + LIMIT_S
            output.drain(lambda: time.monotonic() > give_up_at)
