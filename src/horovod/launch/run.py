"""The course of a job, whoever starts its ranks: prepare, start, supervise, close; then what it raises."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from horovod.bootstrap.place.addresses import join_hosts
from horovod.bootstrap.place.store_address import shown
from horovod.bootstrap.store.rounds import ROUNDS
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.errors import LaunchError
from horovod.launch.contracts.events import HostFacts
from horovod.launch.contracts.fleet import Processes, Request
from horovod.launch.contracts.job import Job, Results
from horovod.launch.contracts.launcher import Prepared, WorkerPlan
from horovod.launch.contracts.registry import LAUNCHERS, load_launcher
from horovod.launch.contracts.signals import Signals
from horovod.launch.course.course import Course
from horovod.launch.driver.actions import Action, Spoil
from horovod.launch.driver.fixed import FixedDriver
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
from horovod.launch.placement.addresses import names_of_this_machine
from horovod.launch.standard_input import opened
from horovod.launch.supervision.failures import raise_for

__all__ = ["conducting", "drained", "make_store", "observe", "run_job"]

_DRAIN_AFTER_SIGNAL_S = 2.0


def run_job(
    job: Job,
    inherited: Mapping[str, str],
    console: Console,
    results: Results | None = None,
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
        closing(load_launcher(row)) as launcher,
        opened(job) as stdin,
    ):
        status.reached = len(here)
        request = Request(job, slots, here, elsewhere, all_here, inherited, limits, signals, console, status)
        prepared = launcher.prepare(request)
        _tell_places(request, prepared.hosts)
        placed = slots if prepared.hosts else ()
        with make_store(prepared) as store:
            observe(store, job)
            console.narrate(f"serving the store at {shown(store.addresses)}")
            output = Output(
                len(slots),
                console,
                timestamps=job.timestamps,
                directory=job.output_directory,
                shown=job.shown,
            )
            try:
                with conducting(
                    lambda: launcher.start(placed, _plan(request, prepared, store, stdin), store, output),
                    output,
                    signals,
                ) as workers:
                    hosts = {slot.rank: slot.hostname for slot in placed}
                    driver = FixedDriver(hosts, len(slots), limits.patience_s, time.monotonic())
                    carry_out = partial(_spoil, store)
                    Course(driver, workers, signals, console, carry_out, status=status).run()
            finally:
                if results is not None:
                    results.sent.update(output.results())
                    # Else any host of the job could have sent the result of any rank.
                    if prepared.hosts or all_here:
                        results.here.update(slot.rank for slot in slots if slot.hostname in here)
    console.narrate("nothing of the job runs any more")
    raise_for(driver.outcome(time.monotonic()), job.command[0], output.tail)


@contextmanager
def conducting(start: Callable[[], Processes], output: Output, signals: Signals) -> Iterator[Processes]:
    """Start workers, then close them and forward the output that is left: only for a while after a signal."""
    with drained(output, signals):
        workers = start()
        output.start()
        try:
            yield workers
        finally:
            workers.close()


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


def make_store(prepared: Prepared, port: int = 0) -> StoreServer:
    """Not serving yet. ``port``: 0 = any. Raises ``LaunchError``."""
    try:
        return StoreServer(
            prepared.key, prepared.store_hosts, port, reserved=prepared.reserved, job=prepared.job_id
        )
    except OSError as error:
        raise LaunchError(
            f"The ranks' store cannot be served on {join_hosts(prepared.store_hosts)}: {error}"
        ) from error


def observe(store: StoreServer, job: Job) -> None:
    """Let the listeners of the job hear."""
    for prefix, heard in job.listeners.items():
        store.observe(prefix, heard)


def _plan(request: Request, prepared: Prepared, store: StoreServer, stdin: int) -> WorkerPlan:
    job, slots, console = request.job, request.slots, request.console
    own_environment = {slot.rank: slot_environment(slot) for slot in slots}
    for name, facts in prepared.hosts.items():
        placed = [slot.rank for slot in slots if slot.hostname == name]
        threads = compute_threads(request.inherited, len(placed), facts.cores)
        if threads is not None and "OMP_NUM_THREADS" not in job.options:
            console.narrate(
                f"OMP_NUM_THREADS={threads} on {name} (not set before): "
                f"{counted(facts.cores, 'core')} for {counted(len(placed), 'rank')}"
            )
            for rank in placed:
                own_environment[rank]["OMP_NUM_THREADS"] = str(threads)
    if prepared.hosts:
        console.narrate(f"starting {len(slots)} x {shlex.join(job.command)}")
    return WorkerPlan(
        command=job.command,
        environment=job_environment(
            request.inherited,
            {**interface_environment(job.interfaces), **job.options},
            store=store.addresses,
            secret_key=prepared.key if prepared.carries_key else None,
            job_id=store.job,
        ),
        own_environment=own_environment,
        call=job.call,
        call_is_input=job.call_is_input,
        stdin=stdin,
    )


def _spoil(store: StoreServer, action: Action) -> None:
    if isinstance(action, Spoil):
        store.fail(ROUNDS, Cause(action.why, (action.rank,), rank=action.rank, host=action.host))
