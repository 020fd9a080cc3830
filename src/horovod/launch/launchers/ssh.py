"""Starts ranks on several hosts: through ssh and an agent on each, and on this machine without ssh."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from horovod.bootstrap.store.server import StoreServer
from horovod.errors import LaunchError
from horovod.launch.agent import bundle
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.feeder import Feeder
from horovod.launch.agent_client.messages import environment_text, path_text, plan_request, request_line
from horovod.launch.agent_client.news import (
    CaughtUp,
    Greeting,
    InputTaken,
    Lost,
    Nobody,
    NoDirectory,
    OutputLost,
    Retry,
    Unreachable,
)
from horovod.launch.agent_client.ssh_command import remote_shell
from horovod.launch.contracts.errors import HostsUnreachable, JobInterrupted
from horovod.launch.contracts.events import Event, Exited, Finished, HostFacts, HostLost, Refused
from horovod.launch.contracts.fleet import Processes, Request
from horovod.launch.contracts.launcher import Prepared, WorkerPlan
from horovod.launch.environment import current_directory, for_other_hosts, shown_directory
from horovod.launch.launchers.local import LocalLauncher, allow_descriptors
from horovod.launch.output.streams import Output
from horovod.launch.placement.addresses import store_hosts
from horovod.launch.placement.hosts import Slot

__all__ = ["SshLauncher"]

_WINDOW_BYTES = 1 << 20  # of output on its way from one host
_DESCRIPTORS_PER_HOST = 3
_DESCRIPTORS_PER_RANK = 6  # of this host, while they are started; then files of the output
_SPARE_DESCRIPTORS = 64
_END_S = GRACE_S + GIVE_UP_S + 1.0  # an agent that is told to end needs no longer

_UNTOLD = "its agent says that nothing runs there any more, but not how these ranks have ended"


class SshLauncher:
    """Ranks on other hosts, and on this one."""

    def __init__(self) -> None:
        self._local = LocalLauncher()
        self._connections: Connections | None = None
        self._elsewhere: tuple[str, ...] = ()
        self._silence_s = 0.0
        self._directory = ""
        self._tell: Callable[[str], None] = print

    def prepare(self, request: Request) -> Prepared:
        text = bundle.text()
        self._local.nofile = allow_descriptors(
            _DESCRIPTORS_PER_HOST * len(request.elsewhere)
            + _DESCRIPTORS_PER_RANK * len(request.slots)
            + _SPARE_DESCRIPTORS
        )
        self._elsewhere = request.elsewhere
        self._silence_s = request.limits.silence_s
        self._directory = current_directory()  # it may be removed later
        self._tell = request.console.tell
        commands = {
            name: remote_shell(
                name, request.job.ssh, request.inherited, sys.executable, len(text), self._silence_s
            )
            for name in request.elsewhere
        }
        request.console.narrate(f"remote hosts: {', '.join(request.elsewhere)}; connecting by ssh")
        self._connections = Connections(commands, text, request.limits.silence_s)
        found = _await_greetings(self._connections, request)
        seen = [facts.origin for facts in found.values()]
        hosts = {**self._local.prepare(request).hosts, **found}
        return Prepared(store_hosts(request.job.interfaces, seen), hosts)

    def start(
        self, slots: Sequence[Slot], plan: WorkerPlan, store: StoreServer, output: Output
    ) -> ManyWorkers:
        assert self._connections is not None
        away = [slot for slot in slots if slot.hostname in self._elsewhere]
        here = [slot for slot in slots if slot.hostname not in self._elsewhere]
        for slot in away:
            for stream in plan.streams:
                output.expect(slot.rank, stream)
        self._connections.deliver_to(output.put)
        environment, defaults = for_other_hosts(plan.environment)
        call = [request_line({"call": sum(piece.nbytes for piece in plan.call)}), *plan.call]
        for name in self._elsewhere:
            ranks_there = [slot.rank for slot in away if slot.hostname == name]
            self._connections.expect(name, ranks_there, _WINDOW_BYTES)
            self._connections.request(
                name,
                *(call if plan.call else ()),
                plan_request(
                    plan,
                    [{"rank": rank, "fed": rank == 0 and plan.stdin >= 0} for rank in ranks_there],
                    environment,
                    nofile=0,
                    defaults=environment_text(defaults),
                    directory=path_text(self._directory),
                    silence_s=self._silence_s,
                    window=_WINDOW_BYTES,
                    call_is_input=plan.call_is_input,
                ),
            )
        local = self._local.start(here, plan, store, output) if here else None
        ranks = {name: {slot.rank for slot in away if slot.hostname == name} for name in self._elsewhere}
        feeder = None
        if plan.stdin >= 0:
            feeder = next(
                (
                    Feeder(plan.stdin, partial(self._connections.feed, slot.hostname))
                    for slot in away
                    if slot.rank == 0
                ),
                None,
            )
        return ManyWorkers(self._connections, ranks, local, self._tell, feeder)

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close(_END_S)


class ManyWorkers:
    """The ranks behind the agents of all hosts."""

    def __init__(
        self,
        connections: Connections,
        ranks: Mapping[str, set[int]],
        local: Processes | None,
        tell: Callable[[str], None],
        feeder: Feeder | None = None,
    ) -> None:
        self._feeder = feeder
        self._connections = connections
        self._running = {name: set(of_host) for name, of_host in ranks.items()}
        self._open = set(ranks)  # hosts that have not finished
        self._refused: set[str] = set()  # hosts that have not started all of theirs
        self._local = local
        self._tell = tell
        self._survivors: list[int] = []
        self._poller = select.epoll()
        self._poller.register(connections.fileno(), select.EPOLLIN)
        if local is not None:
            self._poller.register(local.fileno(), select.EPOLLIN)
        self._local_open = local is not None

    def fileno(self) -> int:
        return self._poller.fileno()

    def events(self) -> Sequence[Event]:
        found: list[Event] = []
        ready = {descriptor for descriptor, _ in self._poller.poll(0)}
        for name, news in self._connections.news():
            match news:
                case Lost(reason):
                    self._open.discard(name)
                    found.append(HostLost(name, tuple(sorted(self._running[name])), reason))
                case Finished(survivors):
                    self._open.discard(name)
                    self._survivors += survivors
                    if self._running[name] and not survivors and name not in self._refused:
                        found.append(HostLost(name, tuple(sorted(self._running[name])), _UNTOLD))
                case NoDirectory(errno):
                    self._tell(
                        f"host {name} has no directory {shown_directory()} ({os.strerror(errno)}): "
                        "its ranks start in the home directory"
                    )
                case InputTaken(size_bytes):
                    if self._feeder is not None:
                        self._feeder.make_room(size_bytes)
                case Greeting() | Retry() | Unreachable():
                    pass  # belongs to the time before the start
                case Nobody() | CaughtUp() | OutputLost():
                    pass  # of agents that another launcher has left: these end with theirs
                case event:
                    if isinstance(event, Exited):
                        self._running[name].discard(event.rank)
                    elif isinstance(event, Refused):
                        self._refused.add(name)
                    found.append(event)
        if self._local is not None and self._local.fileno() in ready:
            for event in self._local.events():
                if isinstance(event, Finished):
                    self._local_open = False
                    self._survivors += event.survivors
                    self._poller.unregister(self._local.fileno())
                else:
                    found.append(event)
        if not self._open and not self._local_open:
            found.append(Finished(tuple(self._survivors)))
        return found

    def finish(self, signum: int) -> None:
        self._connections.request_all(request_line({"end": signum}))
        if self._local is not None:
            self._local.finish(signum)

    def kill(self) -> None:
        self._connections.request_all(request_line({"kill": True}))
        if self._local is not None:
            self._local.kill()

    def pass_on(self, signum: int) -> None:
        self._connections.pass_on(signum)
        if self._local is not None:
            self._local.pass_on(signum)

    def close(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
        self._poller.close()
        if self._local is not None:
            self._local.close()
        self._connections.close(_END_S)


def _await_greetings(connections: Connections, request: Request) -> dict[str, HostFacts]:
    console = request.console
    deadline = time.monotonic() + request.limits.start_s
    waiting = set(request.elsewhere)
    last_words: dict[str, str] = {}
    failed: dict[str, str] = {}
    found: dict[str, HostFacts] = {}
    poller = select.poll()
    poller.register(connections.fileno(), select.POLLIN)
    poller.register(request.signals.fileno(), select.POLLIN)
    while waiting and time.monotonic() < deadline:
        poller.poll(max(0, int((deadline - time.monotonic()) * 1000)) + 1)
        request.signals.clear()
        if request.signals.arrived:
            raise JobInterrupted(
                f"a signal ended the job while these hosts were awaited: {', '.join(sorted(waiting))}.",
                signum=request.signals.arrived[0],
            )
        for name, news in connections.news():
            match news:
                case Greeting():
                    waiting.discard(name)
                    request.status.reached += 1
                    found[name] = HostFacts(news.machine, news.cores, news.origin)
                    console.narrate(
                        f"host {name} ({news.host}) is reached: {news.cores} cores, {news.python}, "
                        f"sees this machine as {news.origin or 'unknown'}"
                    )
                case Retry(reason):
                    last_words[name] = reason
                    console.narrate(f"host {name}: {reason}; trying again")
                case Unreachable(reason) | Lost(reason):
                    waiting.discard(name)
                    failed[name] = reason
                    console.narrate(f"host {name}: {reason}")
                case _:
                    raise LaunchError(f"host {name} reports {news!r} before anything was started")
    late = {
        name: f"no answer within {request.limits.start_s:g} s (--start-timeout)"
        + (f"; before that: {last_words[name]}" if name in last_words else "")
        for name in waiting
    }
    if late or failed:
        raise _unreachable({**failed, **late}, request.elsewhere, exit_code=1 if failed else 124)
    return {name: found[name] for name in request.elsewhere}


def _unreachable(reasons: Mapping[str, str], names: Sequence[str], exit_code: int) -> HostsUnreachable:
    listed = "".join(f"\n    {name}: {reasons[name]}" for name in names if name in reasons)
    count = "one host" if len(reasons) == 1 else f"{len(reasons)} of {len(names)} hosts"
    return HostsUnreachable(
        f"Nothing can be started on {count}:{listed}", reasons=reasons, exit_code=exit_code
    )
