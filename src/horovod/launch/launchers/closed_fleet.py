"""Fleets of host agents that cannot grow: all hosts are known, and all workers are started at once."""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from horovod.bootstrap.store.server import StoreServer
from horovod.errors import LaunchError
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.feeder import Feeder
from horovod.launch.agent_client.messages import environment_text, path_text, plan_request, request_line
from horovod.launch.agent_client.speech import (
    CaughtUp,
    Greeting,
    InputTaken,
    Lost,
    News,
    Nobody,
    NoDirectory,
    OutputLost,
    Retry,
    Unreachable,
)
from horovod.launch.contracts.events import (
    Event,
    Exited,
    Failed,
    Finished,
    HostFacts,
    HostLost,
    HostReached,
    HostRetried,
    Refused,
)
from horovod.launch.contracts.fleet import ClosedFleet, FleetPlan, FleetWorker, Request
from horovod.launch.environment import shown_directory
from horovod.launch.launchers.local import LocalFleet
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import Output

__all__ = ["END_S", "WINDOW_BYTES", "ClosedAgentFleet", "Surroundings"]

WINDOW_BYTES = 1 << 20
"""Most output on its way from one host."""
END_S = GRACE_S + GIVE_UP_S + 1.0
"""An agent that is told to end needs no longer."""

_UNTOLD = "its agent says that nothing runs there any more, but not how these ranks have ended"


class Surroundings(NamedTuple):
    """Command, environment and directory that workers on a host start with. ``defaults``: environment where
    the host has none.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    defaults: Mapping[str, str]
    directory: str

    def plan(self, workers: Iterable[Mapping[str, Any]], nofile: int = 0, **further: object) -> bytes:
        """The first request to an agent; arguments as for `plan_request`."""
        return plan_request(
            self.command,
            self.environment,
            workers,
            nofile,
            defaults=environment_text(self.defaults),
            directory=path_text(self.directory),
            window=WINDOW_BYTES,
            **further,
        )


class ClosedAgentFleet(ClosedFleet):
    """Workers behind agents, each at the other end of a connection of some name, and maybe some of this
    machine. A kind of it says how agents are reached, and what is where.
    """

    call_is_there = False
    """Agents have what is called already."""

    def __init__(
        self, request: Request, output: Output, connections: Connections, local: LocalFleet | None = None
    ) -> None:
        self.request = request
        self.output = output
        self.connections = connections
        self._unfinished: dict[str, set[int]] = {}  # by connection whose agent has not finished
        self._refused: set[str] = set()  # connections whose agents have not started all of theirs
        self._started = False
        self._left = False  # before it started
        self._told = False  # that it has finished
        self._closed = False
        self._survivors: list[int] = []
        self._feeder: Feeder | None = None
        self._local = local
        self._local_runs = False
        self._lost: dict[str, str] = {}  # before it started: why
        self._found: Mailbox[Event | None] = Mailbox()
        self.poller = select.epoll()
        for descriptor in (connections.fileno(), self._found.fileno()):
            self.poller.register(descriptor, select.EPOLLIN)
        if local is not None:
            self.poller.register(local.fileno(), select.EPOLLIN)

    def surroundings(self, name: str) -> Surroundings:
        """Surroundings of the workers behind this connection."""
        raise NotImplementedError

    def serve(self, plan: FleetPlan, store: StoreServer | None) -> None:
        self.plan = plan

    def start_there(self, workers: Mapping[str, Sequence[FleetWorker]]) -> None:
        """Start workers behind these connections."""
        self._started = True
        plan = self.plan
        for each in workers.values():
            for worker in each:
                for stream in plan.streams:
                    self.output.expect(worker.number, stream, worker.label)
        self.connections.deliver_to(self.output.put)
        call: Sequence[bytes | memoryview] = ()
        if plan.call and not self.call_is_there:
            call = [request_line({"call": sum(piece.nbytes for piece in plan.call)}), *plan.call]
        fed = {0} if plan.stdin >= 0 else set()
        for name, there in workers.items():
            numbers = {worker.number for worker in there}
            if name in self._lost:
                self._found.put(HostLost(name, tuple(sorted(numbers)), self._lost[name]))
                continue
            self.watch(name, numbers)
            self.connections.expect(name, numbers, WINDOW_BYTES)
            request = self.surroundings(name).plan(
                [
                    {
                        "rank": worker.number,
                        "environment": worker.own_environment,
                        "fed": worker.number in fed,
                    }
                    for worker in there
                ],
                silence_s=self.request.limits.silence_s,
                call_is_input=plan.call_is_input,
            )
            self.connections.request(name, *call, request)
            if fed & numbers:
                self._feeder = Feeder(plan.stdin, partial(self.connections.feed, name))

    def watch(self, name: str, numbers: Collection[int]) -> None:
        """Workers of these numbers run behind this connection."""
        self._started = True
        self._unfinished[name] = set(numbers)

    def start_here(self, workers: Sequence[FleetWorker]) -> None:
        """Start workers of this machine."""
        assert self._local is not None
        self._started = True
        self._local.serve(self.plan, None)
        self._local.start(workers)
        self._local_runs = True

    def fileno(self) -> int:
        return self.poller.fileno()

    def events(self) -> Sequence[Event]:
        found = [event for event in self._found.take() if event is not None]
        for name, news in self.connections.news():
            self.hear(name, news, found)
        for event in self._local.events() if self._local is not None else ():
            if isinstance(event, Finished):
                self._local_runs = False
                self._survivors += event.survivors
            else:
                found.append(event)
        over = self._left or (self._started and not self._unfinished and not self._local_runs)
        if over and not self._told:
            self._told = True
            found.append(Finished(tuple(self._survivors)))
        return found

    def hear(self, name: str, news: News, found: list[Event]) -> None:
        """Make events of news of a connection."""
        console = self.request.console
        match news:
            case Greeting():
                console.narrate(
                    f"host {name} ({news.host}) is reached: {news.cores} cores, {news.python}, "
                    f"sees this machine as {news.origin or 'unknown'}"
                )
                found.append(HostReached(name, HostFacts(news.machine, news.cores, news.origin)))
            case Retry(reason):
                found.append(HostRetried(name, reason))
            case Unreachable(reason):
                found.append(HostLost(name, (), reason))
            case Lost(reason):
                if not self._started:
                    self._lost[name] = reason
                lost = self._unfinished.pop(name, set())
                found.append(HostLost(name, tuple(sorted(lost)), reason))
            case Finished(survivors):
                self._survivors += survivors
                left = self._unfinished.pop(name, set())
                if left and not survivors and name not in self._refused:
                    found.append(HostLost(name, tuple(sorted(left)), _UNTOLD))
            case NoDirectory(errno):
                console.tell(
                    f"host {name} has no directory {shown_directory()} ({os.strerror(errno)}): "
                    "its ranks start in the home directory"
                )
            case InputTaken(size_bytes):
                if self._feeder is not None:
                    self._feeder.make_room(size_bytes)
            case Nobody() | CaughtUp() | OutputLost():
                pass  # of agents that another launcher has left: these end with theirs
            case event if not self._started:
                why = f"host {name} reports {event!r} before anything was started"
                found.append(Failed(LaunchError(why)))
            case event:
                if isinstance(event, Exited):
                    self._unfinished.get(name, set()).discard(event.rank)
                elif isinstance(event, Refused):
                    self._refused.add(name)
                found.append(event)

    def finish(self, signum: int) -> None:
        self._finish(request_line({"end": signum}))
        if self._local_runs and self._local is not None:
            self._local.finish(signum)

    def kill(self) -> None:
        self._finish(request_line({"kill": True}))
        if self._local_runs and self._local is not None:
            self._local.kill()

    def _finish(self, line: bytes) -> None:
        if self._started:
            self.connections.request_all(line)
        else:  # agents that have no plan end with their connection
            self._left = True
            self._found.put(None)  # nothing may be left to wait for

    def pass_on(self, signum: int) -> None:
        self.connections.pass_on(signum)
        if self._local is not None:
            self._local.pass_on(signum)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._feeder is not None:
            self._feeder.close()
        self.poller.close()
        if self._local is not None:
            self._local.close()
        self.connections.close(END_S)
        self._found.close()
