"""The contract of fleets whose workers are all started at once, over the ways of starting processes."""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.launch.launching import LIMIT_S, PYTHON, WAIT, environment
from tests.launch.test_connections import fake_ssh
from tests.launch.test_external_jobs import fake_mpirun

from horovod.launch.contracts.errors import CommandNotStarted
from horovod.launch.contracts.events import (
    Event,
    Exited,
    Failed,
    Finished,
    Gone,
    HostLost,
    HostReached,
    Placed,
    Refused,
    Started,
)
from horovod.launch.contracts.fleet import ClosedFleet, FleetPlan, FleetWorker, Request
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.registry import LAUNCHERS, make_closed_fleet
from horovod.launch.contracts.signals import Signals
from horovod.launch.contracts.tasks import Card
from horovod.launch.environment import Limits, job_environment, slot_environment
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import Output
from horovod.launch.placement.addresses import store_hosts
from horovod.launch.placement.hosts import HostSlots, assign_ranks
from horovod.launch.run import make_store

pytestmark = pytest.mark.timeout(4 * LIMIT_S)
T = TypeVar("T")


TASK = """
import os, pickle, sys
from horovod.launch.tasks.messages import Arrival
from horovod.launch.tasks.task import work
card, index = pickle.load(sys.stdin.buffer)
worker = f"worker {index}"
arrival = Arrival(f"t{index}", index, 0, "node", "machine", worker, (), os.getcwd(), sys.executable)
work(card, arrival, (), os.environ)
"""


class Tasks:
    """A system that starts tasks for a job: processes of this machine."""

    name = "The system"
    store_hosts: Sequence[str] = ("127.0.0.1",)
    reached_at: Sequence[str] = ()
    logged: Sequence[str] = ()
    without: Sequence[str] = ()
    own_gpus = False

    def __init__(self, count: int, executable: str) -> None:
        self.executable = executable
        self._count = count
        self.tasks: list[subprocess.Popen[bytes]] = []
        self.cancelled = ""
        self.asked = threading.Event()
        self.answers = threading.Event()
        """The diagnosis is there."""

    def begin(self, card: Card, call: Sequence[memoryview], ended: Callable[[str], None]) -> None:
        for index in range(self._count):
            task = subprocess.Popen([PYTHON, "-c", TASK], stdin=subprocess.PIPE, env=environment({}))
            self.tasks.append(task)
            assert task.stdin is not None
            with task.stdin:
                task.stdin.write(pickle.dumps((card, index)))

    def discovered(self, hosts: Mapping[str, int]) -> None:
        raise AssertionError("no host of such a job is discovered")

    def shortage(self, came: int) -> str:
        return ""

    def diagnosis(self) -> str:
        self.asked.set()
        assert self.answers.wait(LIMIT_S)
        return "it was preempted"

    def cancel(self, why: str) -> None:
        self.cancelled = why

    def close(self) -> None:
        for task in self.tasks:
            task.wait(LIMIT_S)


class RunningClosedFleet:
    """A fleet of some ranks that has been made, its output, and all events that were read."""

    def __init__(self, fleet: ClosedFleet, request: Request, stdout: io.StringIO) -> None:
        self.fleet = fleet
        self.stdout = stdout
        self.seen: list[Event] = []
        self.request = request
        self._unread: list[Event] = []

    def await_event(self, kind: type[T], fits: Callable[[T], bool] = lambda _: True) -> T:
        """The next event of this kind that fits; those before it stay."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for index, event in enumerate(self._unread):
                if isinstance(event, kind) and fits(event):
                    del self._unread[index]
                    return event
            left_s = max(0.0, deadline - time.monotonic())
            assert select.select([self.fleet], [], [], left_s)[0], f"nothing came but {self._unread}"
            events = self.fleet.events()
            self.seen += events
            self._unread += events

    def start(self, stack: ExitStack) -> None:
        """Take all steps until the ranks are told to start."""
        request, grounds = self.request, self.fleet.grounds()
        for host in [""] if grounds.places else dict.fromkeys(slot.hostname for slot in request.slots):
            self.fleet.reach(host)
            facts = self.await_event(HostReached).facts
            if grounds.store_hosts is None:
                grounds = replace(grounds, store_hosts=store_hosts((), [facts.origin or "127.0.0.1"]))
        store = stack.enter_context(make_store(grounds))
        variables = job_environment(
            request.inherited,
            {},
            store=store.addresses,
            secret_key=grounds.key if grounds.carries_key else None,
            job_id=store.job,
        )
        self.fleet.serve(FleetPlan(request.job.command, variables), store)
        stack.callback(self.fleet.close)  # before the store
        if grounds.places:
            workers = [FleetWorker(slot.rank, "", {}, slot.rank) for slot in request.slots]
        else:
            workers = [
                FleetWorker(slot.rank, slot.hostname, slot_environment(slot), slot.rank)
                for slot in request.slots
            ]
        self.fleet.start(workers)

    @property
    def cancelled(self) -> bool:
        """The system that runs the tasks was told that their job has failed."""
        tasks = self.request.job.tasks
        return isinstance(tasks, Tasks) and tasks.cancelled != ""

    def exited(self, rank: int) -> int:
        return self.await_event(Exited, lambda event: event.rank == rank).exit_code


Make = Callable[..., RunningClosedFleet]


@pytest.fixture(params=["local", "ssh", "mpirun", "spark"])
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    extra = {"PATH": os.environ["PATH"]}
    if name == "ssh":
        extra = fake_ssh(tmp_path)
    elif name == "mpirun":
        extra = fake_mpirun(tmp_path / "bin")
    for variable, value in extra.items():
        monkeypatch.setenv(variable, value)
    return name


@contextmanager
def closed_fleet(
    way: str, *command: str, processes: int = 2
) -> Iterator[tuple[RunningClosedFleet, ExitStack]]:
    host = "no-such-host-0" if way == "ssh" else "localhost"
    hosts = (HostSlots(host, processes),)
    slots = assign_ranks(hosts, processes, processes)
    stdout = io.StringIO()
    console = Console(stdout=stdout, stderr=io.StringIO())
    tasks = Tasks(processes, command[0]) if way == "spark" else None
    job = Job(command=command, processes=processes, launcher=way, tasks=tasks)
    here, elsewhere = ((), (host,)) if way == "ssh" else ((host,), ())
    with (
        ExitStack() as last,
        Signals() as signals,
        Status(console, wanted=False, hosts=1, ranks=processes) as status,
        ExitStack() as stack,
    ):
        inherited = {**os.environ, **environment({})}
        limits = Limits(LIMIT_S, LIMIT_S, 1.0)
        request = Request(
            job, slots, here, elsewhere, not elsewhere, inherited, limits, signals, console, status
        )
        output = Output(processes, console)
        give_up_at = time.monotonic() + 2 * LIMIT_S
        last.callback(lambda: output.drain(lambda: time.monotonic() > give_up_at))
        fleet = make_closed_fleet(LAUNCHERS[way], request, output)
        stack.callback(fleet.close)
        output.start()
        yield RunningClosedFleet(fleet, request, stdout), stack


def test_a_job_that_goes_well_finishes_by_itself(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    with closed_fleet(way, "sh", "-c", "echo rank $HOROVOD_RANK of $HOROVOD_SIZE") as (running, stack):
        running.start(stack)
        assert [running.exited(rank) for rank in range(2)] == [0, 0]
        assert running.await_event(Finished) == Finished(())
        running.fleet.close()
        assert not running.cancelled
    printed = running.stdout.getvalue() + capfd.readouterr().out  # ranks of a program print past us
    assert sorted(printed.splitlines()) == [f"[{rank}]<stdout>:rank {rank} of 2" for rank in range(2)]
    first = next(event for event in running.seen if isinstance(event, (Placed, Started)))
    assert isinstance(first, Placed) == (way in ("mpirun", "spark"))
    assert not any(isinstance(event, Gone) for event in running.seen)


def test_a_rank_that_fails_ends_nobody_until_the_job_is_told_to_finish(way: str) -> None:
    fails = (
        f'if [ $HOROVOD_RANK = 1 ]; then exit 7; fi; exec {sys.executable} -c "import time; time.sleep(600)"'
    )
    with closed_fleet(way, "sh", "-c", fails) as (running, stack):
        running.start(stack)
        assert running.exited(1) == 7
        assert not any(isinstance(event, Exited) and event.rank == 0 for event in running.seen)
        running.fleet.finish(signal.SIGTERM)
        assert running.exited(0) == -signal.SIGTERM
        assert running.await_event(Finished).survivors == ()
        running.fleet.close()
        assert running.cancelled == (way == "spark")


def test_a_job_that_is_killed_ends_at_once(way: str) -> None:
    with closed_fleet(way, "sh", "-c", f"trap '' TERM; echo deaf; {WAIT}") as (running, stack):
        running.start(stack)
        for _ in range(2):
            running.await_event(Started)
        running.fleet.finish(signal.SIGTERM)
        running.fleet.kill()
        assert running.await_event(Finished).survivors == ()


def test_a_job_that_is_told_to_finish_before_it_starts_has_nothing_to_wait_for(way: str) -> None:
    with closed_fleet(way, PYTHON) as (running, _):
        running.fleet.grounds()
        running.fleet.finish(signal.SIGTERM)
        assert running.await_event(Finished) == Finished(())
        running.fleet.close()
        running.fleet.close()


def test_a_command_that_is_missing_is_refused(way: str) -> None:
    with closed_fleet(way, "no-such-command-{}") as (running, stack):
        running.start(stack)
        if way == "mpirun":
            error = running.await_event(Failed).error
            assert isinstance(error, CommandNotStarted)
            assert error.exit_code == 127
        else:
            assert running.await_event(Refused).rank in (0, 1)
            running.await_event(Finished)
        assert not any(isinstance(event, Exited) for event in running.seen)


def test_a_lost_task_is_told_when_the_system_has_said_why_and_nobody_waits_for_that() -> None:
    with closed_fleet("spark", "sh", "-c", WAIT) as (running, stack):
        running.start(stack)
        for _ in range(2):
            running.await_event(Started)
        tasks = running.request.job.tasks
        assert isinstance(tasks, Tasks)
        tasks.tasks[1].kill()
        deadline = time.monotonic() + LIMIT_S
        while not tasks.asked.is_set():
            assert time.monotonic() < deadline
            if select.select([running.fleet], [], [], 0.01)[0]:
                running.seen += running.fleet.events()
        running.seen += running.fleet.events()
        assert not any(isinstance(event, (HostLost, Finished)) for event in running.seen)
        tasks.answers.set()
        lost = running.await_event(HostLost)
        assert (lost.host, lost.ranks) == ("node", (1,))
        assert lost.reason.endswith("The system says: it was preempted")
        running.fleet.finish(signal.SIGTERM)
        assert running.exited(0) == -signal.SIGTERM
        running.await_event(Finished)
