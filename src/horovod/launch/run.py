"""The course of a job whose ranks are all known: reach hosts, start, supervise, close, and raise."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from horovod.bootstrap.place.addresses import join_hosts
from horovod.bootstrap.place.store_address import shown
from horovod.bootstrap.store.rounds import ROUNDS
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.errors import LaunchError
from horovod.launch.contracts.errors import JobInterrupted
from horovod.launch.contracts.events import HostFacts
from horovod.launch.contracts.fleet import ClosedFleet, FleetPlan, FleetWorker, Grounds, Request
from horovod.launch.contracts.job import Job, RankResults
from horovod.launch.contracts.registry import LAUNCHERS, make_closed_fleet
from horovod.launch.contracts.signals import Signals
from horovod.launch.course.course import Course
from horovod.launch.course.failures import raise_for
from horovod.launch.driver.actions import Action, Reach, Spoil
from horovod.launch.driver.fixed import FixedDriver
from horovod.launch.driver.reaching import Reaching
from horovod.launch.environment import (
    compute_threads,
    interface_environment,
    job_environment,
    slot_environment,
    time_limits,
)
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import Output
from horovod.launch.phrases import counted
from horovod.launch.placement.addresses import names_of_this_machine, store_hosts
from horovod.launch.standard_input import opened

__all__ = ["drained", "make_store", "observe", "run_job"]

_DRAIN_AFTER_SIGNAL_S = 2.0


def run_job(
    job: Job,
    inherited: Mapping[str, str],
    console: Console,
    results: RankResults | None = None,
) -> None:
    """Run `job` until nothing of it is left; `inherited` is the environment workers start from. `results` is
    filled with what ranks sent home, also if the job failed.

    Raises:
        ConfigError: there are fewer slots than processes, or the launcher cannot do what was asked for.
        CommandNotStarted: the command cannot be run.
        HostsUnreachable: no process can be started on some hosts.
        WorkerFailed: a rank ended with an error, the first one; or its host was lost, or its end is unknown.
        JobInterrupted: a signal to this process ended the job.
        LauncherFailed: the program that starts the ranks failed.
        LaunchError: the job could not be started or watched.
    """
    slots = job.place()
    names = tuple(dict.fromkeys(slot.hostname for slot in slots))
    ours = names_of_this_machine(names)
    here = tuple(name for name in names if name in ours)
    elsewhere = tuple(name for name in names if name not in ours)
    limits = time_limits(job.options, inherited)
    row = LAUNCHERS[job.launcher]
    if not elsewhere and row.on_one_host:
        row = LAUNCHERS[row.on_one_host]
    all_here = not elsewhere and bool(job.hosts or row.stays_here)
    # The handlers come first and go last: at no moment does a signal leave processes behind.
    with (
        Signals() as signals,
        Status(
            console,
            wanted=False if row.program else job.status,  # its ranks print past us
            hosts=len(names),
            ranks=len(slots),
        ) as status,
        opened(job) as stdin,
    ):
        request = Request(job, slots, here, elsewhere, all_here, inherited, limits, signals, console, status)
        output = Output(
            len(slots), console, timestamps=job.timestamps, directory=job.output_directory, shown=job.shown
        )
        placed, awaited = slots, ""
        try:
            with drained(output, signals), closing(make_closed_fleet(row, request, output)) as fleet:
                grounds = fleet.grounds()
                names, placed = (("",), ()) if grounds.places else ((*here, *elsewhere), slots)
                now = time.monotonic()
                reaching = Reaching(names, len(elsewhere), limits.start_s, now)
                ranks = {slot.rank: slot.hostname for slot in placed}
                driver = FixedDriver(ranks, len(slots), limits.patience_s, now, reaching=reaching)
                stores: list[StoreServer] = []
                carry_out = partial(_carry_out, fleet, stores)
                course = Course(driver, fleet, signals, console, carry_out, status=status)
                course.run(until=lambda: driver.ready)
                if driver.ready:
                    hosts = driver.begin(time.monotonic())
                    if not grounds.places:
                        _tell_places(request, hosts)
                    if grounds.store_hosts is None:
                        seen = [facts.origin for facts in hosts.values() if facts.origin]
                        grounds = replace(grounds, store_hosts=store_hosts(job.interfaces, seen))
                    with make_store(grounds) as store, closing(fleet):
                        stores.append(store)
                        observe(store, job)
                        console.narrate(f"serving the store at {shown(store.addresses)}")
                        fleet.serve(_plan(request, grounds, store, stdin), store)
                        fleet.start(_workers(request, hosts))
                        output.start()
                        course.run()
                        awaited = fleet.awaited()
                outcome = driver.outcome(time.monotonic())
                if outcome.signum is not None and awaited:
                    text = f"a signal ended the job while {awaited}."
                    raise JobInterrupted(text, signum=outcome.signum)
        finally:
            if results is not None:
                results.sent.update(output.results())
                # Else any host of the job could have sent the result of any rank.
                if placed or all_here:
                    results.here.update(slot.rank for slot in slots if slot.hostname in here)
    console.narrate("nothing of the job runs any more")
    raise_for(outcome, job.command[0], output.tail)


@contextmanager
def drained(output: Output, signals: Signals) -> Iterator[None]:
    """At the end what is left of the output is forwarded: for a while only, after a signal."""
    try:
        yield
    finally:
        seen = len(signals.arrived)
        give_up_at = time.monotonic() + _DRAIN_AFTER_SIGNAL_S if seen else float("inf")
        output.drain(lambda: len(signals.arrived) > seen or time.monotonic() > give_up_at)


def _tell_places(request: Request, hosts: Mapping[str, HostFacts]) -> None:
    here, console = request.here, request.console
    names_by_machine: dict[str, list[str]] = {}
    for name, facts in hosts.items():
        ranks = [slot.rank for slot in request.slots if slot.hostname == name]
        what = "this machine" if name in here else "another machine"
        console.narrate(f"host {name} is {what}: ranks {ranks[0]} to {ranks[-1]}")
        names_by_machine.setdefault(facts.machine, []).append(name)
    for names in names_by_machine.values():
        if len(names) > 1 and not set(names) <= set(here):
            console.tell(
                f"{' and '.join(names)} are one machine: local ranks begin at 0 for each of these names, so "
                "its ranks would share devices. Use one name with all slots."
            )
    masks = sorted(name for name in request.inherited if name.endswith("CUDA_VISIBLE_DEVICES"))
    if masks and here and len(hosts) > len(here):
        console.tell(f"{', '.join(masks)} is kept for the ranks on this machine only: it means its devices.")


def make_store(grounds: Grounds, port: int = 0) -> StoreServer:
    """Not serving yet. ``port``: 0 = any. Raises ``LaunchError``."""
    assert grounds.store_hosts is not None
    try:
        return StoreServer(
            grounds.key, grounds.store_hosts, port, reserved=grounds.reserved, job=grounds.job_id
        )
    except OSError as error:
        raise LaunchError(
            f"The ranks' store cannot be served on {join_hosts(grounds.store_hosts)}: {error}"
        ) from error


def observe(store: StoreServer, job: Job) -> None:
    """Let the listeners of the job hear."""
    for prefix, heard in job.listeners.items():
        store.observe(prefix, heard)


def _plan(request: Request, grounds: Grounds, store: StoreServer, stdin: int) -> FleetPlan:
    job = request.job
    return FleetPlan(
        command=job.command,
        environment=job_environment(
            request.inherited,
            {**interface_environment(job.interfaces), **job.options},
            store=store.addresses,
            secret_key=grounds.key if grounds.carries_key else None,
            job_id=store.job,
        ),
        call=job.call,
        call_is_input=job.call_is_input,
        stdin=stdin,
    )


def _workers(request: Request, hosts: Mapping[str, HostFacts]) -> list[FleetWorker]:
    """A worker for each rank; on these hosts, or wherever the fleet places them."""
    if "" in hosts:
        return [FleetWorker(slot.rank, "", {}, slot.rank) for slot in request.slots]
    job, slots, console = request.job, request.slots, request.console
    threads: dict[str, str] = {}  # by host
    for name, facts in hosts.items():
        placed = sum(slot.hostname == name for slot in slots)
        number = compute_threads(request.inherited, placed, facts.cores)
        if number is not None and "OMP_NUM_THREADS" not in job.options:
            console.narrate(
                f"OMP_NUM_THREADS={number} on {name} (not set before): "
                f"{counted(facts.cores, 'core')} for {counted(placed, 'rank')}"
            )
            threads[name] = str(number)
    console.narrate(f"starting {len(slots)} x {shlex.join(job.command)}")
    workers = []
    for slot in slots:
        own = slot_environment(slot)
        if slot.hostname in threads:
            own["OMP_NUM_THREADS"] = threads[slot.hostname]
        workers.append(FleetWorker(slot.rank, slot.hostname, own, slot.rank))
    return workers


def _carry_out(fleet: ClosedFleet, stores: Sequence[StoreServer], action: Action) -> None:
    """Reach hosts; let nobody wait for a rank that is gone, in a store that is there."""
    match action:
        case Reach(host):
            fleet.reach(host)
        case Spoil(_, why, rank, host):
            for store in stores:
                store.fail(ROUNDS, Cause(why, (rank,), rank=rank, host=host))
