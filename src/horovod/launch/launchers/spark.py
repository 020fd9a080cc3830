"""Ranks in Spark tasks. Who starts the tasks is `Job.tasks`: here nothing knows of Spark but the name."""

from __future__ import annotations

import select
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.errors import LaunchError, StoreTimeout
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.speech import Greeting, Lost, News, Unreachable
from horovod.launch.contracts.events import Event, Failed, HostFacts, HostLost, HostReached, Placed
from horovod.launch.contracts.fleet import FleetPlan, FleetWorker, Grounds, Request
from horovod.launch.contracts.tasks import Card, TaskSource
from horovod.launch.environment import slot_environment
from horovod.launch.launchers.closed_fleet import ClosedAgentFleet, Surroundings
from horovod.launch.launchers.fleet import AgentFleet
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import Output
from horovod.launch.placement.hosts import HostSlots, Slot, named, place_ranks
from horovod.launch.tasks.links import BadMessage, Left, Tasks
from horovod.launch.tasks.messages import Arrival

__all__ = [
    "DEVICES_VARIABLE",
    "TaskPlacement",
    "SparkFleet",
    "TaskFleet",
    "elastic_name",
    "place_tasks",
    "unique_names",
]

DEVICES_VARIABLE = "HOROVOD_SPARK_DEVICES"
"""Addresses of the GPUs that Spark has given to the task of a rank, with commas."""

_GREETING_S = 30.0
_REORDERED_S = 1.0  # what became of a task may be known so late
_MOST_WHY = 4000  # characters of what another system says


class TaskFleet(ClosedAgentFleet):
    """One rank in each task of `Job.tasks`, which comes with its own Python and environment. Ranks are placed
    when all tasks are there.
    """

    call_is_there = True

    def __init__(self, request: Request, output: Output) -> None:
        assert request.job.tasks is not None
        self._source = request.job.tasks
        self._tasks: Tasks | None = None
        self._stage_ended: Mailbox[str] = Mailbox()
        self._calls: Mailbox[Callable[[list[Event]], None]] = Mailbox()
        self._timers: list[threading.Timer] = []
        self._arrivals: dict[int, Arrival] = {}  # by index
        self._placement: TaskPlacement | None = None
        self._behind: dict[str, tuple[Arrival, Slot]] = {}  # by task
        self._awaited: set[str] = set()  # tasks in which no agent has answered
        self._lost_some = False
        self._held: deque[Event] = deque()  # behind the news of a task that is gone
        self._asking = False  # the system, about that task
        self._why_over = ""
        super().__init__(request, output, Connections(b"", request.limits.silence_s, greeting_s=_GREETING_S))
        for mailbox in (self._stage_ended, self._calls):
            self.poller.register(mailbox.fileno(), select.EPOLLIN)

    def grounds(self) -> Grounds:
        return Grounds(list(self._source.store_hosts), places=True)

    def reach(self, host: str) -> None:
        self._calls.put(lambda found: found.append(HostReached(host, HostFacts("", 0))))

    def serve(self, plan: FleetPlan, store: StoreServer | None) -> None:
        assert store is not None
        super().serve(plan, store)
        self._store = store

    def start(self, workers: Sequence[FleetWorker]) -> None:
        """Start the tasks."""
        start_s = self.request.limits.start_s
        key = bytes.fromhex(self.plan.environment[SECRET_VARIABLE])
        self._tasks = Tasks(self._store, key)
        self.poller.register(self._tasks.news.fileno(), select.EPOLLIN)
        self._source.begin(
            _card(self._source, self._store, key, start_s), self.plan.call, self._stage_ended.put
        )
        self._call_in(start_s, self._miss)

    def awaited(self) -> str:
        missing = self.request.job.processes - len(self._arrivals)
        return f"{missing} tasks of {self._source.name} were awaited" if missing else ""

    def surroundings(self, name: str) -> Surroundings:
        arrival, _ = self._behind[name]
        command = _command(self._source, self.plan.command, arrival)
        return Surroundings(command, self.plan.environment, {}, arrival.directory)

    def events(self) -> Sequence[Event]:
        found: list[Event] = []
        for call in self._calls.take():
            call(found)
        self._held.extend(self._news())
        while self._held and not self._asking:
            event = self._held.popleft()
            if isinstance(event, HostLost):
                self._lost_some = self._asking = True
                threading.Thread(target=self._ask_why, args=(event,), daemon=True).start()
            else:
                found.append(event)
        return found

    def _news(self) -> list[Event]:
        found = list(super().events())
        for news in self._tasks.news.take() if self._tasks is not None else ():
            match news:
                case Arrival():
                    self._arrived(news, found)
                case Left(task):
                    gone = next((each for each in self._arrivals.values() if each.task == task), None)
                    if gone is not None and self._placement is None:
                        why = f"{_why_lost(self._source, gone)} before all had come"
                        found.append(HostLost(task, (), why))
                case BadMessage(error):
                    found.append(Failed(error))
        for why in self._stage_ended.take():
            if self._placement is None:
                text = f"{self._source.name} has not started the tasks. {_shortened(why)}".rstrip()
                found.append(Failed(LaunchError(text)))
            else:  # a task that was killed may be the reason: that says more, and comes a little later
                self._call_in(_REORDERED_S, partial(self._tell_ended, why))
        return found

    def _call_in(self, wait_s: float, call: Callable[[list[Event]], None]) -> None:
        timer = threading.Timer(wait_s, lambda: self._calls.put(call))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _miss(self, found: list[Event]) -> None:
        """The time for tasks to come is over."""
        came, wanted, start_s = len(self._arrivals), self.request.job.processes, self.request.limits.start_s
        if came < wanted:
            text = f"Only {came} of {wanted} tasks of {self._source.name} have come within {start_s:g} s."
            text = f"{text} {self._source.shortage(came)}".rstrip()
            found.append(Failed(StoreTimeout(text, waited_s=start_s)))

    def _tell_ended(self, why: str, found: list[Event]) -> None:
        if not self._lost_some:
            text = f"{self._source.name} has ended the tasks of this job. {_shortened(why)}".rstrip()
            found.append(Failed(LaunchError(text)))

    def _arrived(self, arrival: Arrival, found: list[Event]) -> None:
        wanted = self.request.job.processes
        if arrival.index >= wanted or arrival.index in self._arrivals:
            return  # another attempt: it waits until the job is over
        self._arrivals[arrival.index] = arrival
        console, source = self.request.console, self._source
        console.narrate(
            f"{source.name} task {arrival.index} is there: {arrival.worker} on {arrival.host}, "
            f"{arrival.python}"
        )
        if len(self._arrivals) < wanted:
            return
        placement = self._placement = place_tasks(list(self._arrivals.values()))
        self._store.narrow()
        sizes = Counter(slot.hostname for slot in placement.slots)
        console.narrate(f"{source.name} placed ranks at {named(HostSlots(*each) for each in sizes.items())}")
        found.append(Placed(placement.slots))
        assert self._tasks is not None
        for each, slot in zip(placement.tasks, placement.slots, strict=True):
            self._behind[each.task] = each, slot
            self._awaited.add(each.task)
            link = partial(self._tasks.link, each, _why_lost(source, each))
            self.connections.reach(each.task, link, client=_named(source, each))

    def hear(self, name: str, news: News, found: list[Event]) -> None:
        if self._started:
            super().hear(name, news, found)
            return
        match news:
            case Greeting():
                self._awaited.discard(name)
                if not self._awaited:
                    self._start_all()
            case Unreachable(reason) | Lost(reason):
                index = self._behind[name][0].index
                found.append(Failed(LaunchError(f"Nothing can be started in task {index}: {reason}.")))

    def _start_all(self) -> None:
        assert self._placement is not None
        gpus = self._placement.gpus
        workers = {}
        for task, (arrival, slot) in self._behind.items():
            own = {**slot_environment(slot), **_devices(self._source, arrival, gpus[slot.hostname])}
            workers[task] = [FleetWorker(slot.rank, slot.hostname, own, slot.rank)]
        self.start_there(workers)

    def _ask_why(self, lost: HostLost) -> None:
        """Ask the system about a task that is gone; on a thread of its own, as that may take seconds."""
        said = self._source.diagnosis()
        self._calls.put(partial(self._tell_lost, lost, said))

    def _tell_lost(self, lost: HostLost, said: str, found: list[Event]) -> None:
        self._asking = False
        if lost.host in self._behind:
            reason = f"{lost.reason}. {self._source.name} says: {said}" if said else lost.reason
            found.append(lost._replace(host=self._behind[lost.host][1].hostname, reason=reason))
        else:
            found.append(Failed(LaunchError(f"{lost.reason}. {said}".rstrip())))

    def finish(self, signum: int) -> None:
        self._why_over = "the job has failed, or was told to end"
        super().finish(signum)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        for timer in self._timers:
            timer.cancel()
        if self._tasks is not None:
            if self._why_over or not self._started:
                self._source.cancel(self._why_over or "the job is over")
            self._tasks.dismiss_all()
            self._source.close()
            self._tasks.close()
        self._calls.close()
        self._stage_ended.close()


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
                case BadMessage(error):
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


@dataclass(frozen=True)
class TaskPlacement:
    """``tasks`` by rank, and their slots; ``gpus``: of each host, those of all its tasks, in that order."""

    tasks: tuple[Arrival, ...]
    slots: tuple[Slot, ...]
    gpus: Mapping[str, tuple[str, ...]]


def place_tasks(arrivals: Sequence[Arrival]) -> TaskPlacement:
    """Ranks host by host, whatever the order of the tasks: the host of task 0 comes first, and on a host the
    order is that of the tasks. Spark deals tasks to hosts in turns.
    """
    in_order = sorted(arrivals, key=lambda each: each.index)
    names = unique_names(in_order)
    hosts = list(dict.fromkeys(names[each.machine] for each in in_order))
    by_rank = sorted(in_order, key=lambda each: hosts.index(names[each.machine]))
    slots = place_ranks([names[each.machine] for each in by_rank])
    gpus: dict[str, tuple[str, ...]] = {}
    for each, slot in zip(by_rank, slots, strict=True):
        gpus[slot.hostname] = gpus.get(slot.hostname, ()) + each.gpus
    return TaskPlacement(
        tuple(by_rank), slots, {host: tuple(dict.fromkeys(all_)) for host, all_ in gpus.items()}
    )


def unique_names(arrivals: Sequence[Arrival]) -> dict[str, str]:
    """A name for each machine: what its host calls itself, with a number where several call themselves the
    same, such as the containers of a host.
    """
    names: dict[str, str] = {}
    for each in arrivals:
        if each.machine not in names:
            name, number = each.host, 1
            while name in names.values():
                number += 1
                name = f"{each.host}.{number}"
            names[each.machine] = name
    return names
