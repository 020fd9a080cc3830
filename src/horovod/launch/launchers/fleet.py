"""A fleet of host agents that grows: by ssh on other hosts, on this machine in the same way without ssh."""

from __future__ import annotations

import enum
import hashlib
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from horovod.bootstrap.store.server import StoreServer
from horovod.launch.agent import bundle
from horovod.launch.agent_client.connection import WATCHER
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.messages import request_line, start_request
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
from horovod.launch.agent_client.ssh_command import own_shell, remote_shell
from horovod.launch.contracts.events import (
    Event,
    Exited,
    Finished,
    Gone,
    HostFacts,
    HostLost,
    HostReached,
    LeftBehind,
    Refused,
    Rejoined,
    Started,
)
from horovod.launch.contracts.fleet import Fleet, FleetPlan, FleetWorker, Request
from horovod.launch.environment import current_directory, for_other_hosts
from horovod.launch.launchers.closed_fleet import END_S, WINDOW_BYTES, Surroundings
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import Output
from horovod.launch.phrases import counted
from horovod.launch.placement.addresses import names_of_this_machine

__all__ = ["AgentFleet", "local_fleet", "ssh_fleet"]

_MOST_DESCRIPTORS = 1 << 16  # for hosts and files: nobody knows how many will come
_NOBODY = "its agent has ended, and with it all workers there"
_UNASKED = "its agent has ended, though nobody told it to"


def local_fleet(request: Request, plan: FleetPlan, output: Output, store: StoreServer) -> AgentFleet:
    """All hosts, whatever their names, are this machine."""
    return AgentFleet(request, plan, output, lambda host: True)


def ssh_fleet(request: Request, plan: FleetPlan, output: Output, store: StoreServer) -> AgentFleet:
    """Other hosts by ssh."""
    return AgentFleet(request, plan, output, lambda host: bool(names_of_this_machine((host,))))


class _State(enum.Enum):
    SOUGHT = enum.auto()
    """Nobody knows yet whether it is this machine."""
    AWAITED = enum.auto()
    REACHED = enum.auto()
    DROPPED = enum.auto()
    """Being left: the agent there ends all that it runs."""


@dataclass
class _Host:
    state: _State = _State.SOUGHT
    here: bool = False
    facts: HostFacts | None = None
    """Until they are told."""
    called: bool = False
    """The call is there."""
    workers: set[int] = field(default_factory=set)
    """Workers that are not `Gone`."""
    unfinished: set[int] = field(default_factory=set)
    """Workers among these that have not ended, as far as it is known."""
    again: bool = False
    """Reach the host again when it is dropped."""
    unknown: set[int] | None = None
    """Workers of another launcher that nothing has been heard of yet; None: the agent is our own."""
    nobody: bool = False
    """There is no such agent."""
    then: dict[str, object] | None = None
    """Request to end, for the agent of another launcher as soon as that is ours."""


class AgentFleet(Fleet):
    """A `Fleet` of host agents.

    Args:
        is_here: whether a name of a host means this machine; may wait, on a thread of its own.
        call_is_there: agents have what is called already.
    """

    def __init__(
        self,
        request: Request,
        plan: FleetPlan,
        output: Output,
        is_here: Callable[[str], bool],
        *,
        call_is_there: bool = False,
    ) -> None:
        self._call_is_there = call_is_there
        self._plan = plan
        self._output = output
        self._is_here = is_here
        self._directory = current_directory()  # it may be removed before the next host comes
        self._silence_s = request.limits.silence_s
        self._ssh = request.job.ssh
        self._inherited = request.inherited
        self._console = request.console
        self._text = self.agent_text()
        self._nofile = _raise_descriptors()
        self._hosts: dict[str, _Host] = {}
        self._where: dict[int, str] = {}  # worker -> host
        self._finishing = False
        self._finished = False
        self._closed = False
        self._survivors: list[int] = []
        self._found: Mailbox[tuple[str, _Host, bool] | None] = Mailbox()
        self.connections = Connections(self._text, self._silence_s, greeting_s=request.limits.start_s)
        self.connections.deliver_to(output.put)
        self.poller = select.epoll()
        for descriptor in (self.connections.fileno(), self._found.fileno()):
            self.poller.register(descriptor, select.EPOLLIN)

    def reach(self, host: str) -> None:
        known = self._hosts.get(host)
        if self._finishing:
            return
        if known is not None:
            known.again = known.state is _State.DROPPED
            return
        self._seek(host, _Host(called=self._call_is_there))

    def rejoin(self, host: str, workers: Sequence[FleetWorker]) -> None:
        numbers = {worker.number for worker in workers}
        for worker in workers:
            self._expect(worker)
            self._where[worker.number] = host
        self._seek(host, _Host(called=True, workers=numbers, unfinished=set(numbers), unknown=set(numbers)))

    def start(self, worker: FleetWorker) -> None:
        host = self._hosts.get(worker.host)
        if host is None or host.state is not _State.REACHED:
            raise ValueError(f"host {worker.host} is not reached: nothing can be started there")
        if worker.number in self._where:
            raise ValueError(f"worker {worker.number} is there already")
        request = start_request({worker.number: worker.own_environment})
        self._expect(worker)
        self._where[worker.number] = worker.host
        host.workers.add(worker.number)
        host.unfinished.add(worker.number)
        if self._plan.call and not host.called:
            host.called = True
            size = sum(piece.nbytes for piece in self._plan.call)
            self.connections.request(worker.host, request_line({"call": size}), *self._plan.call)
        self.connections.expect(worker.host, [worker.number])
        self.connections.request(worker.host, request)

    def end(self, numbers: Collection[int], signum: int) -> None:
        by_host: dict[str, list[int]] = {}
        for number in numbers:
            if number in self._where:
                by_host.setdefault(self._where[number], []).append(number)
        for name, there in by_host.items():
            self.connections.request(name, request_line({"end": signum, "workers": there}))

    def pass_on(self, signum: int) -> None:
        self.connections.pass_on(signum)

    def doubt(self, host: str) -> None:
        known = self._hosts.get(host)
        if known is not None and known.state is _State.REACHED:
            self.connections.doubt(host)

    def drop(self, host: str) -> None:
        self._drop(host, {"end": int(signal.SIGTERM)})

    def fileno(self) -> int:
        return self.poller.fileno()

    def events(self) -> Sequence[Event]:
        found: list[Event] = []
        for one in self._found.take():
            if one is not None:
                self._connect(*one)
        for name, news in self.connections.news():
            self._hear(name, news, found)
        if self._finishing and not self._hosts and not self._finished:
            self._finished = True
            found.append(Finished(tuple(self._survivors)))
        return found

    def finish(self, signum: int) -> None:
        self._finish({"end": signum})

    def kill(self) -> None:
        self._finish({"kill": True})

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.poller.close()
            self.connections.close(END_S)
            self._found.close()

    def _seek(self, name: str, host: _Host) -> None:
        self._hosts[name] = host

        def seek() -> None:
            self._found.put((name, host, self._is_here(name)))

        threading.Thread(target=seek, name=f"seek {name}", daemon=True).start()

    def _expect(self, worker: FleetWorker) -> None:
        """Expect the output of a worker."""
        try:
            for stream in self._plan.streams:
                self._output.expect(worker.number, stream, worker.label)
        except BaseException:
            self._output.end(worker.number)
            raise

    def _finish(self, request: dict[str, object]) -> None:
        self._finishing = True
        for name in list(self._hosts):
            self._drop(name, request)
        self._found.put(None)  # nothing may be left to wait for

    def _drop(self, name: str, request: dict[str, object]) -> None:
        host = self._hosts.get(name)
        if host is None:
            return
        host.again = False
        if host.unknown is not None and host.state in (_State.SOUGHT, _State.AWAITED):
            host.then = request  # else the agent would wait for yet another launcher
        elif host.state is _State.SOUGHT:
            del self._hosts[name]
        elif host.state is _State.AWAITED:
            host.state = _State.DROPPED
            self.connections.leave(name, 0.0)
        else:
            host.state = _State.DROPPED
            self.connections.request(name, request_line(request))
            self.connections.leave(name, END_S)

    def _connect(self, name: str, host: _Host, here: bool) -> None:
        if self._hosts.get(name) is not host or host.state is not _State.SOUGHT:
            return  # it was dropped
        host.state = _State.AWAITED
        host.here = here
        self.dial(name, here)

    def _hear(self, name: str, news: News, found: list[Event]) -> None:
        host = self._hosts[name]
        match news:
            case Greeting() if host.state is _State.DROPPED:
                pass
            case Greeting():
                self._console.narrate(
                    f"host {name} ({news.host}) is reached: {news.cores} cores, {news.python}"
                )
                # Where this machine was logged in from says nothing about its own address.
                origin = "" if host.here else news.origin
                host.facts = HostFacts(news.machine, news.cores, origin)
                if host.unknown is None:
                    self._begin(name, host)
                else:
                    self._attach(name, host, host.unknown)
                if host.unknown is None or host.workers:  # else nobody knows yet whose agent it will be
                    self._tell_reached(name, host, found)
            case Unreachable(reason) | Lost(reason):
                self._let_go(name, host, found, _NOBODY if host.nobody else reason)
            case Finished(survivors):
                self._survivors += survivors
                self._let_go(name, host, found, _UNASKED)
            case NoDirectory(errno):
                self._console.tell(
                    f"host {name} has no directory {self._directory} ({os.strerror(errno)}): "
                    "its workers start in the home directory"
                )
            case Nobody() if host.workers or host.state is _State.DROPPED:
                host.nobody = True
                self.connections.leave(name, 0.0)
            case Nobody():  # there was no worker either: an agent of our own does as well
                host.unknown = None
                self._begin(name, host)
                self._tell_reached(name, host, found)
                found.append(Rejoined(name, ()))
            case CaughtUp():
                self._tell_reached(name, host, found)
                missing, host.unknown = sorted(host.unknown or ()), set()
                for number in missing:
                    self._forget(host, number)
                found.append(Rejoined(name, tuple(missing)))
            case OutputLost(size_bytes):
                self._console.tell(
                    f"host {name} had no room for {size_bytes} bytes that workers printed while no launcher "
                    "was there"
                )
            case Retry() | InputTaken():
                pass  # there is one attempt only, and nobody is fed
            case LeftBehind(processes, None):
                self._console.narrate(f"host {name}: ending {processes} processes that nobody knows")
            case Exited(rank) | Refused(rank):
                _know(host, rank)
                if rank in host.unfinished:  # else it says so twice
                    host.unfinished.discard(rank)
                    found.append(news)
            case event:
                if isinstance(event, Started):
                    _know(host, event.rank)
                if isinstance(event, Gone):
                    self._survivors += event.survivors
                    self._forget(host, event.rank)
                found.append(event)

    def _tell_reached(self, name: str, host: _Host, found: list[Event]) -> None:
        if host.facts is not None:
            found.append(HostReached(name, host.facts))
            host.facts = None

    # What another way to an agent does differently.

    def agent_text(self) -> bytes:
        """Source of an agent, sent to it before all else."""
        return bundle.text()

    def dial(self, name: str, here: bool) -> None:
        """Let ``connections`` reach an agent. Of this machine, if it is ``here``."""
        if here:
            command = own_shell(sys.executable, len(self._text))
            self.connections.reach(name, command, client=WATCHER)
        else:
            command = remote_shell(
                name, self._ssh, self._inherited, sys.executable, len(self._text), self._silence_s
            )
            self.connections.reach(name, command)

    def surroundings(self, name: str, here: bool) -> Surroundings:
        """Of the workers on a host."""
        environment, defaults = (
            (dict(self._plan.environment), {}) if here else for_other_hosts(self._plan.environment)
        )
        return Surroundings(self._plan.command, environment, defaults, self._directory)

    def _begin(self, name: str, host: _Host) -> None:
        host.state = _State.REACHED
        self.connections.expect(name, [], WINDOW_BYTES)
        self.connections.request(
            name,
            self.surroundings(name, host.here).plan(
                (),
                self._nofile if host.here else 0,
                open=True,
                inherit=not host.here,
                silence_s=self._silence_s,
                call_is_input=self._plan.call_is_input,
                **self._reconnect(name),
            ),
        )

    def _attach(self, name: str, host: _Host, workers: set[int]) -> None:
        host.state = _State.REACHED
        self._console.narrate(
            f"host {name}: looking for the agent that another launcher has left, with "
            f"{counted(len(workers), 'worker')}"
        )
        self.connections.expect(name, workers, WINDOW_BYTES)
        self.connections.attach(name, reconnect_socket(self._plan.secret, name))
        if host.then is not None:
            self._drop(name, host.then)

    def _reconnect(self, host: str) -> dict[str, object]:
        """Fields in the plan of a host about the wait for another launcher."""
        if not self._plan.patience_s:
            return {}
        return {"reconnect": reconnect_socket(self._plan.secret, host), "patience_s": self._plan.patience_s}

    def _let_go(self, name: str, host: _Host, found: list[Event], reason: str) -> None:
        """The connection has ended."""
        del self._hosts[name]
        if host.state is not _State.DROPPED:
            found.append(HostLost(name, tuple(sorted(host.unfinished)), reason))
        for number in list(host.workers):
            self._forget(host, number)
        if host.again:
            self.reach(name)

    def _forget(self, host: _Host, number: int) -> None:
        host.workers.discard(number)
        host.unfinished.discard(number)
        del self._where[number]
        self._output.end(number)


def reconnect_socket(secret: str, host: str) -> str:
    """Name of the socket at which the agent of a host waits for another launcher."""
    return "farandole-agent-" + hashlib.sha256(f"{secret} agent {host}".encode()).hexdigest()[:40]


def _know(host: _Host, worker: int) -> None:
    """Note that a worker was begun on a host."""
    if host.unknown is not None:
        host.unknown.discard(worker)


def _raise_descriptors() -> int:
    """Make room for hosts and files. Returns the limit that workers of this machine shall have as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft
