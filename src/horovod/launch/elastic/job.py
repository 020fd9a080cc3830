"""The course of an elastic job: hosts are found, workers started, worlds formed, until the last has ended."""

from __future__ import annotations

import secrets
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from horovod.bootstrap.place.addresses import own_addresses
from horovod.bootstrap.place.descriptors import require_room
from horovod.bootstrap.place.store_address import shown
from horovod.bootstrap.store.membership import WAIT_VARIABLE, WORKER_VARIABLE, place_variables
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.config import value_of
from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.agent.host import machine_name
from horovod.launch.contracts.errors import JobInterrupted
from horovod.launch.contracts.fleet import Fleet, FleetPlan, FleetWorker, Grounds, MakeFleet, Request
from horovod.launch.contracts.job import Job, RankResults
from horovod.launch.contracts.registry import LAUNCHERS, make_fleet
from horovod.launch.contracts.signals import Signals, signal_name
from horovod.launch.course.course import Course
from horovod.launch.course.failures import hint_for
from horovod.launch.course.passing import Passing
from horovod.launch.driver.actions import (
    Action,
    AnnounceEnd,
    Doubt,
    Drop,
    End,
    Forget,
    Log,
    Notify,
    Over,
    Reach,
    Spoil,
    Start,
    Tell,
    Widen,
    WorkerEnd,
)
from horovod.launch.driver.causes import describe_exit
from horovod.launch.elastic.conversation import Conversation
from horovod.launch.elastic.discovery import Discovered, DiscoveryFailed, HostDiscovery, Poller, ask
from horovod.launch.elastic.growing import GrowingDriver
from horovod.launch.elastic.hosts import Hosts
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.launch.elastic.record import Record, timeline_of_job
from horovod.launch.elastic.rules import Rules
from horovod.launch.elastic.saved import Clock, Saved, Saver, load, packed
from horovod.launch.environment import (
    compute_threads,
    current_directory,
    interface_environment,
    job_environment,
    time_limits,
)
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import Output
from horovod.launch.phrases import counted
from horovod.launch.placement.addresses import names_of_this_machine
from horovod.launch.run import drained, make_store, observe

__all__ = ["Elastic", "run_elastic_job"]

_DESCRIPTORS = 32  # with a discovery script; what opens more makes room for it
_MOST_WIDTH = 1000  # ranks of folders that sort by name


@dataclass(frozen=True)
class Elastic:
    """Settings that make a job elastic.

    Attributes:
        rules: sizes and limits.
        discovery: says which hosts there are.
        events: file for what happens; None: none is kept.
        state: file with which another driver can go on; None: the job ends with this one.
        driver_wait_s: how long hosts and workers wait for that.
        at_first: the hosts until discovery says others; None: nobody knows.
    """

    rules: Rules
    discovery: HostDiscovery
    events: Path | None = None
    state: Path | None = None
    driver_wait_s: float = 0.0
    at_first: Mapping[str, int] | None = None

    def describe(self) -> str:
        """Describe in lines what would be run: the hosts that discovery names now, and the limits.

        Raises:
            DiscoveryFailed: it says nothing.
        """
        found, rules = ask(self.discovery), self.rules
        if self.at_first is not None:
            found = Discovered(self.at_first)
        if found.hosts is None:
            raise DiscoveryFailed(found.failure)
        most = "all slots" if rules.most is None else counted(rules.most, "rank")
        hosts = ", ".join(f"{name} ({counted(slots, 'slot')})" for name, slots in found.hosts.items())
        return (
            f"hosts now: {hosts or 'none'}\n"
            f"starts with {counted(rules.processes, 'slot')}, goes on with {rules.least} or more, grows to "
            f"{most}\n"
        )


def run_elastic_job(
    job: Job,
    elastic: Elastic,
    inherited: Mapping[str, str],
    console: Console,
    results: RankResults | None = None,
    *,
    words: Sequence[str] = (),
    saved: Saved | None = None,
    make: MakeFleet | None = None,
) -> None:
    """Run `job` on hosts that come and go, until nothing of it is left; `inherited` is the environment that
    workers start from. `results` is filled with what the ranks of the last world sent home. ``words`` of the
    command line are kept with the state, ``saved`` is that of another driver, to go on with. ``make``:
    makes the fleet, in place of the launcher of the job.

    Raises:
        ConfigError: the launcher cannot run such a job.
        CommandNotStarted: the command cannot be run.
        WorkerFailed: the job has failed, first by this worker of its last world.
        JobInterrupted: a signal to this process ended the job.
        LaunchError: it has failed for another reason, such as too few slots.
    """
    require_room(_DESCRIPTORS, "The driver of an elastic job")
    with ExitStack() as stack:
        course = _ElasticJob(job, elastic, inherited, console, stack, words, saved, make)
        try:
            course.run()
        finally:
            stack.close()
            if results is not None:
                course.fill(results)
    course.raise_failure()


class _ElasticJob:
    """One job while it runs. Everything is done on one thread; others leave things in mailboxes."""

    def __init__(
        self,
        job: Job,
        elastic: Elastic,
        inherited: Mapping[str, str],
        console: Console,
        stack: ExitStack,
        words: Sequence[str],
        saved: Saved | None,
        make: MakeFleet | None,
    ) -> None:
        self._job = job
        self._console = console
        self._inherited = inherited
        self._command_line = tuple(words)
        self._directory = current_directory()  # it may be removed later
        self._clock = Clock(saved)
        self._saver: Saver | None = None
        if elastic.state is not None:
            self._saver = Saver(elastic.state, console.tell, goes_on=saved is not None)
        saved = self._open_store(elastic, saved, stack)
        self._signals = stack.enter_context(Signals())
        self._status = stack.enter_context(Status(console, wanted=job.status, hosts=0, ranks=0))
        timeline = value_of("timeline", {**inherited, **job.options})
        self._record = Record(console, elastic.events, timeline_of_job(timeline), goes_on=saved is not None)
        stack.callback(self._record.close)
        self._conversation = Conversation(self._store, console.tell)
        stack.callback(self._conversation.close)
        stack.enter_context(self._store)
        observe(self._store, job)
        console.narrate(f"serving the store at {shown(self._store.addresses)}")
        self._output = Output(
            elastic.rules.most or min(max(job.processes, 1), _MOST_WIDTH),
            console,
            timestamps=job.timestamps,
            directory=job.output_directory,
            shown=job.shown,
            goes_on=saved is not None,
        )
        stack.enter_context(drained(self._output, self._signals))
        self._fleet = self._make_fleet(elastic, make)
        stack.callback(self._fleet.close)
        self._output.start()
        self._poller = Poller(elastic.discovery, first=elastic.at_first if saved is None else None)
        stack.callback(self._poller.close)
        self._began = time.monotonic()
        if saved is not None:
            self._go_on(saved)

    def _open_store(self, elastic: Elastic, saved: Saved | None, stack: ExitStack) -> Saved | None:
        """Make the driver and the store, new ones or as another driver has left them. Returns what it has."""
        if saved is None:
            policy = ElasticPolicy(elastic.rules, Hosts(elastic.rules.cooldown_s), self._clock.now())
            hosts = _store_hosts(self._job, elastic.rules)
            # Other hosts may never come. Tasks of Spark are at the store before they are hosts.
            reserved = hosts[1:] if self._job.tasks is None else ()
            grounds = Grounds(hosts, reserved=reserved)
            self._store = make_store(grounds)
        else:
            grounds = Grounds(
                [host for host, _ in saved.store], key=bytes.fromhex(saved.key), job_id=saved.job
            )
            self._store = _store(grounds, saved)
            stack.callback(self._store.stop)
            # Only who has the address may go on: until now another one may have.
            saved = load(elastic.state) if elastic.state is not None else saved
            policy = saved.state_machine()
        self._driver = GrowingDriver(policy, self._job.command[0], machine_name(), self._clock.now())
        self._key = grounds.key
        self._door = secrets.token_hex(16) if saved is None else saved.door
        return saved

    def _make_fleet(self, elastic: Elastic, make: MakeFleet | None) -> Fleet:
        job = self._job
        waits = {WAIT_VARIABLE: f"{elastic.driver_wait_s:g}"} if elastic.driver_wait_s else {}
        environment = job_environment(
            self._inherited,
            {**interface_environment(job.interfaces), **job.options, "HOROVOD_ELASTIC": "1", **waits},
            store=self._store.addresses,
            secret_key=self._key,
            job_id=self._store.job,
        )
        request = Request(
            job, (), (), (), False, self._inherited, time_limits(job.options, self._inherited), self._signals,
            self._console, self._status,
        )  # fmt: skip
        return (make or partial(make_fleet, LAUNCHERS[job.launcher]))(
            request,
            FleetPlan(
                job.command, environment, job.call, elastic.driver_wait_s, self._door, job.call_is_input
            ),
            self._output,
            self._store,
        )

    def _go_on(self, saved: Saved) -> None:
        """Be the driver of what another one has left."""
        self._conversation.publish_again(saved.news, self._driver.policy.news)
        again = self._driver.go_on(saved.workers, saved.agents, self._clock.now())
        for name, there in again.items():
            self._fleet.rejoin(
                name, [FleetWorker(number, name, {}, self._driver.labels[number]) for number in there]
            )

    def _save(self, actions: Sequence[Action]) -> None:
        """Save the decisions before they are carried out."""
        driver = self._driver
        driver.note(actions)
        if self._saver is not None:
            self._saver.save(
                Saved(
                    self._command_line,
                    self._directory,
                    dict(self._inherited),
                    self._key.hex(),
                    self._store.job,
                    self._store.addresses,
                    self._door,
                    {number: (driver.hosts_of[number], label) for number, label in driver.labels.items()},
                    sorted(driver.agents),
                    self._conversation.news,
                    packed(driver.policy),
                    self._clock.now(),
                    time.time(),
                )
            )

    def run(self) -> None:
        """Until nothing of the job runs."""
        self._console.narrate(f"elastic: {shlex.join(self._job.command)}")
        self._poller.start()
        labels = self._driver.labels
        Course(
            self._driver,
            self._fleet,
            self._signals,
            self._console,
            self._carry_out,
            passing=Passing(
                self._signals, self._console, self._fleet.pass_on, lambda each: labels.get(each, each)
            ),
            status=self._status,
            sources=((self._poller, self._hear_of_hosts), (self._conversation, self._hear_workers)),
            save=self._save,
            clock=self._clock.now,
        ).run()
        if self._saver is not None:
            self._saver.remove()

    def _hear_of_hosts(self, now: float) -> None:
        for discovered in self._poller.take():
            if discovered.hosts is None:
                self._driver.policy.discovery_failed(discovered.failure, now)
            else:
                self._driver.policy.discovered(discovered.hosts, now, discovered.passing)

    def _hear_workers(self, now: float) -> None:
        self._conversation.hear(self._driver.policy, now)

    def fill(self, results: RankResults) -> None:
        """Add the results that the ranks of the last world sent home."""
        sent = self._output.results()
        here = names_of_this_machine(sorted(set(self._driver.hosts_of.values())))
        for rank, worker in enumerate(self._driver.over.ranks if self._driver.over is not None else ()):
            if worker in sent:
                results.sent[rank] = sent[worker]
            if self._driver.hosts_of.get(worker) in here:
                results.here.add(rank)

    def raise_failure(self) -> None:
        """Raise what `run_elastic_job` promises, if the job has failed."""
        elapsed_s = time.monotonic() - self._began
        stuck = ""
        driver = self._driver
        if driver.survivors:
            numbers = ", ".join(map(str, driver.survivors))
            stuck = f" Even SIGKILL did not end these processes: {numbers}."
        if driver.signum:
            raise JobInterrupted(
                f"{signal_name(driver.signum)} ended the job after {elapsed_s:.1f} s.{stuck}",
                signum=driver.signum,
            )
        if driver.refused is not None:
            raise driver.refused
        over = driver.over
        if over is not None and over.failed is not None and not over.error:
            raise self._worker_failed(over.failed, stuck)
        if over is not None and over.error:
            raise LaunchError(f"The elastic job has failed. {over.error}{stuck}")
        if stuck:
            raise LaunchError(f"All ranks succeeded.{stuck}")

    def _worker_failed(self, end: WorkerEnd, stuck: str) -> WorkerFailed:
        code = end.exit_code
        how = "was lost with its host" if code is None else describe_exit(code)
        said = self._driver.words.get(end.worker, "")
        tail = self._output.tail(end.worker)
        hint = hint_for(code or 0, self._job.command[0], end.host, tail)
        if end.worker in self._driver.ended_by_us:
            hint = "It was ended by horovodrun."
        return WorkerFailed(
            f"rank {end.rank} on {end.host} {how}{f': its script {said}' if said else ''}. "
            f"The elastic job has failed: no world can go on. Process name: {end.host}[{end.slot}]. "
            f"Exit code: {1 if code is None else code}."
            f"{stuck}{f' {hint}' if hint else ''}",
            rank=end.rank,
            host=end.host,
            exit_code=code or 1,
            last_lines=tail,
        )

    def _carry_out(self, action: Action) -> None:
        match action:
            case Reach(host):
                self._fleet.reach(host)
            case Doubt(host):
                self._fleet.doubt(host)
            case Drop(host):
                self._fleet.drop(host)
                self._driver.agents.discard(host)
            case Start():
                self._start(action)
            case End(workers, kill):
                self._conversation.announce_end(workers)
                self._fleet.end(workers, signal.SIGKILL if kill else signal.SIGTERM)
            case AnnounceEnd(workers):
                self._conversation.announce_end(workers)
            case Tell(worker, number, answer):
                self._conversation.tell(worker, number, answer)
            case Forget(worker):
                self._conversation.forget(worker)
            case Notify(kind):
                self._conversation.publish(kind)
            case Spoil():
                self._conversation.spoil(action)
            case Widen():
                self._store.widen()
            case Log():
                self._record.add(action)
            case Over():
                self._fleet.finish(signal.SIGTERM)

    def _start(self, start: Start) -> None:
        if self._driver.signum:
            return
        environment = {
            **place_variables(start.place),
            "HOROVOD_HOSTNAME": start.host,
            WORKER_VARIABLE: str(start.worker),
        }
        threads = compute_threads(self._inherited, start.place[3], self._driver.cores.get(start.host, 1))
        if threads is not None and "OMP_NUM_THREADS" not in self._job.options:
            environment["OMP_NUM_THREADS"] = str(threads)
        try:
            self._fleet.start(FleetWorker(start.worker, start.host, environment, label=start.place[0]))
        except ValueError:
            pass  # its host was lost a moment ago, which is still to be read


def _store(grounds: Grounds, saved: Saved) -> StoreServer:
    try:
        return make_store(grounds, saved.store[0][1])
    except LaunchError as error:
        raise LaunchError(
            "--resume: the driver of this job still runs, or ran on another machine than this one, where its "
            f"workers look for it. {error}"
        ) from error


def _store_hosts(job: Job, rules: Rules) -> list[str]:
    """Addresses where the store is served: hosts may come from anywhere, unless all that can come are this
    machine.
    """
    if job.tasks is not None:
        return list(job.tasks.store_hosts)
    names = [host.name for host in job.hosts]
    if rules.fixed_hosts and names_of_this_machine(names) == frozenset(names):
        return [unix.fresh_name()]
    own = [address.host for address in own_addresses(",".join(job.interfaces))]
    return list(dict.fromkeys(["127.0.0.1", *own]))
