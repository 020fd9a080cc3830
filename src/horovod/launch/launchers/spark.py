"""Ranks in Spark tasks. Who starts the tasks is `Job.tasks`: here nothing knows of Spark but the name."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from functools import partial

from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.errors import LaunchError, StoreTimeout
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.messages import path_text, plan_request
from horovod.launch.agent_client.news import Greeting, Lost, Unreachable
from horovod.launch.contracts.errors import JobInterrupted
from horovod.launch.contracts.events import Event, Failed, HostLost, Placed
from horovod.launch.contracts.fleet import FleetPlan, Request
from horovod.launch.contracts.launcher import Prepared, WorkerPlan
from horovod.launch.contracts.tasks import Card, TaskSource
from horovod.launch.environment import slot_environment
from horovod.launch.launchers.fleet import AgentFleet, Surroundings
from horovod.launch.launchers.ssh import ManyWorkers
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import RESULT, STREAMS, Output
from horovod.launch.placement.hosts import HostSlots, Slot, named
from horovod.launch.tasks.links import Left, Nonsense, Tasks
from horovod.launch.tasks.messages import Arrival
from horovod.launch.tasks.places import Placement, place_tasks

__all__ = ["DEVICES_VARIABLE", "SparkFleet", "SparkLauncher", "elastic_name"]

DEVICES_VARIABLE = "HOROVOD_SPARK_DEVICES"
"""Addresses of the GPUs that Spark has given to the task of a rank, with commas."""

_WINDOW_BYTES = 1 << 20  # of output on its way from one task
_END_S = GRACE_S + GIVE_UP_S + 1.0
_GREETING_S = 30.0
_REORDERED_S = 1.0  # what became of a task may be known so late
_MOST_WHY = 4000  # characters of what another system says


class SparkLauncher:
    """One rank in each task of `Job.tasks`, which comes with its own Python and environment."""

    def __init__(self) -> None:
        self._tasks: Tasks | None = None
        self._connections: Connections | None = None
        self._source: TaskSource | None = None

    def prepare(self, request: Request) -> Prepared:
        assert request.job.tasks is not None
        self._request = request
        self._source = request.job.tasks
        return Prepared(list(self._source.store_hosts))

    def start(self, slots: Sequence[Slot], plan: WorkerPlan, store: StoreServer, output: Output) -> _Workers:
        try:
            return self._start(plan, store, output)
        except BaseException:
            self.close()  # as long as the store is there, by which the tasks hear of it
            raise

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close(_END_S)
        if self._tasks is not None and self._source is not None:
            # The start has failed.
            self._source.cancel("the job is over")
            self._tasks.dismiss_all()
            self._source.close()
            self._tasks.close()
            self._tasks = None

    def _start(self, plan: WorkerPlan, store: StoreServer, output: Output) -> _Workers:
        assert self._source is not None
        request, source = self._request, self._source
        ended: Mailbox[str] = Mailbox()
        key = bytes.fromhex(plan.environment[SECRET_VARIABLE])
        self._tasks = Tasks(store, key)
        source.begin(_card(source, store, key, request.limits.start_s), plan.call, ended.put)
        arrivals = self._await_arrivals(self._tasks, source, ended)
        placement = place_tasks(arrivals)
        store.narrow()
        found = Placed(placement.slots)
        hosts = dict.fromkeys(slot.hostname for slot in placement.slots)
        sizes = {name: sum(slot.hostname == name for slot in placement.slots) for name in hosts}
        request.console.narrate(
            f"{source.name} placed ranks at {named(HostSlots(*each) for each in sizes.items())}"
        )
        for slot in placement.slots:
            for stream in (*STREAMS, RESULT) if plan.call else STREAMS:
                output.expect(slot.rank, stream)
        self._connections = Connections({}, b"", request.limits.silence_s, attempts=1, greeting_s=_GREETING_S)
        self._connections.deliver_to(output.put)
        ranked = list(zip(placement.tasks, placement.slots, strict=True))
        for each in placement.tasks:
            link = partial(self._tasks.link, each, _why_lost(source, each))
            self._connections.reach(each.task, link, client=_named(source, each))
        _await_greetings(self._connections, request, placement.tasks)
        self._send_plans(placement, plan)
        ranks = {each.task: {slot.rank} for each, slot in ranked}
        names = {each.task: slot.hostname for each, slot in ranked}
        many = ManyWorkers(self._connections, ranks, None, request.console.tell)
        workers = _Workers(many, found, names, self._tasks, source, ended)
        self._tasks = None  # they are the workers' now
        return workers

    def _await_arrivals(self, tasks: Tasks, source: TaskSource, ended: Mailbox[str]) -> list[Arrival]:
        request = self._request
        wanted = request.job.processes
        deadline = time.monotonic() + request.limits.start_s
        found: dict[int, Arrival] = {}
        poller = select.poll()
        for descriptor in (tasks.news.fileno(), ended.fileno(), request.signals.fileno()):
            poller.register(descriptor, select.POLLIN)
        while len(found) < wanted:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StoreTimeout(
                    f"Only {len(found)} of {wanted} tasks of {source.name} have come within "
                    f"{request.limits.start_s:g} s. {source.shortage(len(found))}".rstrip(),
                    waited_s=request.limits.start_s,
                )
            poller.poll(int(left_s * 1000) + 1)
            request.signals.clear()
            if request.signals.arrived:
                raise JobInterrupted(
                    f"a signal ended the job while {wanted - len(found)} tasks of {source.name} were "
                    "awaited.",
                    signum=request.signals.arrived[0],
                )
            for why in ended.take():
                raise LaunchError(f"{source.name} has not started the tasks. {_shortened(why)}".rstrip())
            for news in tasks.news.take():
                match news:
                    case Arrival() if news.index < wanted and news.index not in found:
                        found[news.index] = news
                        request.console.narrate(
                            f"{source.name} task {news.index} is there: {news.worker} on {news.host}, "
                            f"{news.python}"
                        )
                    case Arrival():
                        pass  # another attempt: it waits until the job is over
                    case Left(task):
                        gone = next((each for each in found.values() if each.task == task), None)
                        if gone is not None:
                            why = f"{_why_lost(source, gone)} before all had come. {source.diagnosis()}"
                            raise LaunchError(why.rstrip())
                    case Nonsense(error):
                        raise error
        return list(found.values())

    def _send_plans(self, placement: Placement, plan: WorkerPlan) -> None:
        assert self._connections is not None
        assert self._source is not None
        for each, slot in zip(placement.tasks, placement.slots, strict=True):
            own = {**slot_environment(slot), **_devices(self._source, each, placement.gpus[slot.hostname])}
            whole = plan._replace(command=_command(self._source, plan.command, each))
            self._connections.expect(each.task, [slot.rank], _WINDOW_BYTES)
            self._connections.request(
                each.task,
                plan_request(
                    whole._replace(own_environment={slot.rank: own}),
                    [{"rank": slot.rank}],
                    plan.environment,
                    nofile=0,
                    defaults={},
                    directory=path_text(each.directory),
                    silence_s=self._request.limits.silence_s,
                    window=_WINDOW_BYTES,
                ),
            )


class _Workers:
    """`ManyWorkers`, each behind a task, and what becomes of the tasks."""

    def __init__(
        self,
        many: ManyWorkers,
        first: Placed,
        hosts: Mapping[str, str],
        tasks: Tasks,
        source: TaskSource,
        ended: Mailbox[str],
    ) -> None:
        self._many = many
        self._hosts = hosts  # by task
        self._tasks = tasks
        self._source = source
        self._ended = ended
        self._found: list[Event] = [first]
        self._failed = ""
        self._lost = False
        self._wake: Mailbox[None] = Mailbox()
        self._wake.put(None)
        self._poller = select.epoll()
        for descriptor in (many.fileno(), ended.fileno(), tasks.news.fileno(), self._wake.fileno()):
            self._poller.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        return self._poller.fileno()

    def events(self) -> Sequence[Event]:
        self._wake.take()
        found, self._found = self._found, []
        found += self._of_ranks()
        for why in self._ended.take():
            # A task that was killed may be the reason: that says more, and comes a little later.
            until = time.monotonic() + _REORDERED_S
            while not self._lost and time.monotonic() < until:
                select.select([self._many.fileno()], [], [], max(0.0, until - time.monotonic()))
                found += self._of_ranks()
            if not self._lost:
                text = f"{self._source.name} has ended the tasks of this job. {_shortened(why)}".rstrip()
                found.append(Failed(LaunchError(text)))
        for news in self._tasks.news.take():
            if isinstance(news, Nonsense):
                found.append(Failed(news.error))
        return found

    def _of_ranks(self) -> list[Event]:
        found: list[Event] = []
        for event in self._many.events():
            if isinstance(event, HostLost):
                self._lost = True
                reason = self._explained(event.reason)
                found.append(HostLost(self._hosts[event.host], event.ranks, reason))
            else:
                found.append(event)
        return found

    def finish(self, signum: int) -> None:
        self._failed = self._failed or "the job has failed, or was told to end"
        self._many.finish(signum)

    def kill(self) -> None:
        self._many.kill()

    def pass_on(self, signum: int) -> None:
        self._many.pass_on(signum)

    def close(self) -> None:
        self._poller.close()
        self._many.close()
        if self._failed:
            self._source.cancel(self._failed)
        self._tasks.dismiss_all()
        self._source.close()
        self._tasks.close()
        self._wake.close()
        self._ended.close()

    def _explained(self, reason: str) -> str:
        said = self._source.diagnosis()
        return f"{reason}. {self._source.name} says: {said}" if said else reason


class SparkFleet(AgentFleet):
    """Tasks that come and go, each a host of its own with one slot. `Job.tasks` has a `discovery`, which is
    told of them.
    """

    def __init__(self, request: Request, plan: FleetPlan, output: Output, store: StoreServer) -> None:
        assert request.job.tasks is not None
        self._source = request.job.tasks
        super().__init__(request, plan, output, lambda host: False, call_is_there=True)
        self._request = request
        self._shared = plan
        self._arrivals: dict[str, Arrival] = {}  # by the name of the host
        self._released = False
        key = bytes.fromhex(plan.environment[SECRET_VARIABLE])
        self._tasks = Tasks(store, key)
        self._ended: Mailbox[str] = Mailbox()
        for mailbox in (self._tasks.news, self._ended):
            self.poller.register(mailbox.fileno(), select.EPOLLIN)
        try:
            card = _card(self._source, store, key, request.limits.start_s)
            self._source.begin(card, plan.call, self._ended.put)
        except BaseException:
            self.close()
            raise

    def agent_text(self) -> bytes:
        return b""  # the task has it

    def dial(self, name: str, here: bool) -> None:
        arrival = self._arrivals[name]
        link = partial(self._tasks.link, arrival, _why_lost(self._source, arrival))
        self.connections.reach(name, link, client=_named(self._source, arrival))

    def surroundings(self, name: str, here: bool) -> Surroundings:
        arrival = self._arrivals[name]
        environment = {**self._shared.environment, **_devices(self._source, arrival, arrival.gpus)}
        return Surroundings(
            _command(self._source, self._shared.command, arrival), environment, {}, arrival.directory
        )

    def drop(self, host: str) -> None:
        super().drop(host)
        if host in self._arrivals:
            # Spark tries the task again, which is then another host.
            why = f"{host} is not used any more by its elastic job"
            self._tasks.dismiss(self._arrivals.pop(host).task, why)
            self._source.discovered(dict.fromkeys(self._arrivals, 1))

    def events(self) -> Sequence[Event]:
        found: list[Event] = []
        for news in self._tasks.news.take():
            match news:
                case Arrival():
                    self._arrivals[elastic_name(news)] = news
                    self._request.console.narrate(f"{_named(self._source, news)} is there, on {news.host}")
                case Left(task):
                    for name in [name for name, each in self._arrivals.items() if each.task == task]:
                        del self._arrivals[name]
                case Nonsense(error):
                    found.append(Failed(error))
            self._source.discovered(dict.fromkeys(self._arrivals, 1))
        for why in self._ended.take():
            text = f"{self._source.name} has ended the tasks of this job. {_shortened(why)}".rstrip()
            found.append(Failed(LaunchError(text)))
        return [*found, *super().events()]

    def close(self) -> None:
        if not self._released:
            self._released = True
            super().close()
            self._tasks.dismiss_all()
            self._source.close()
            self._tasks.close()
            self._ended.close()


def elastic_name(arrival: Arrival) -> str:
    """Of the host that a task is: each attempt is another one."""
    again = f".{arrival.attempt}" if arrival.attempt else ""
    return f"{arrival.host}.task{arrival.index}{again}"


def _card(source: TaskSource, store: StoreServer, key: bytes, start_s: float) -> Card:
    port = store.address[1]
    places = dict.fromkeys([*store.addresses, *((host, port) for host in source.reached_at)])
    return Card(tuple(places), key, store.job, start_s, tuple(source.logged), tuple(source.without))


def _await_greetings(connections: Connections, request: Request, tasks: Sequence[Arrival]) -> None:
    """Until an agent runs in each task."""
    waiting = {each.task: each for each in tasks}
    deadline = time.monotonic() + _GREETING_S
    poller = select.poll()
    poller.register(connections.fileno(), select.POLLIN)
    poller.register(request.signals.fileno(), select.POLLIN)
    while waiting:
        poller.poll(max(0, int((deadline - time.monotonic()) * 1000)) + 1)
        request.signals.clear()
        if request.signals.arrived:
            raise JobInterrupted(
                "a signal ended the job while its ranks were being started.",
                signum=request.signals.arrived[0],
            )
        for task, news in connections.news():
            if isinstance(news, Greeting):
                waiting.pop(task, None)
            elif isinstance(news, (Unreachable, Lost)):
                each = next(each for each in tasks if each.task == task)
                raise LaunchError(f"Nothing can be started in task {each.index}: {news.reason}.")


def _command(source: TaskSource, command: Sequence[str], arrival: Arrival) -> tuple[str, ...]:
    """The Python of the task runs it, unless another one was named."""
    return (source.executable or arrival.python, *command[1:])


def _devices(source: TaskSource, arrival: Arrival, of_host: Sequence[str]) -> dict[str, str]:
    """Variables that tell a rank its GPUs."""
    if not arrival.gpus:
        return {}
    own = {DEVICES_VARIABLE: ",".join(arrival.gpus)}
    if not source.own_gpus:
        return own
    # The local rank is the position of a device among those that the ranks of a host see.
    places = [str(of_host.index(each)) for each in arrival.gpus]
    return {DEVICES_VARIABLE: ",".join(places), "CUDA_VISIBLE_DEVICES": ",".join(of_host)}


def _named(source: TaskSource, arrival: Arrival) -> str:
    return f"{source.name} task {arrival.index} ({arrival.worker})"


def _why_lost(source: TaskSource, arrival: Arrival) -> str:
    return f"{_named(source, arrival)} is gone: its Python worker or its executor was killed, or has crashed"


def _shortened(why: str) -> str:
    return why if len(why) <= _MOST_WHY else f"{why[:_MOST_WHY]} ..."
