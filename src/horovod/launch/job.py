"""One job from placing its ranks to its end."""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from horovod.bootstrap import unix
from horovod.bootstrap.addresses import join_hosts
from horovod.bootstrap.rounds import ROUNDS
from horovod.bootstrap.store import StoreServer
from horovod.bootstrap.store_address import shown
from horovod.bootstrap.table import Cause
from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.agent_client.ssh_command import SshOptions
from horovod.launch.environment import (
    compute_threads,
    failure_patience_s,
    interface_environment,
    job_environment,
    silence_s,
    slot_environment,
    start_timeout_s,
)
from horovod.launch.launchers.contract import (
    CommandNotStarted,
    HostFacts,
    HostLost,
    JobInterrupted,
    Refused,
    Request,
    WorkerPlan,
    load_launcher,
)
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import Output
from horovod.launch.placement.addresses import names_of_this_machine, store_hosts
from horovod.launch.placement.hosts import HostSlots, Slot, assign_ranks
from horovod.launch.supervision.first_cause import End
from horovod.launch.supervision.signals import Signals, signal_name
from horovod.launch.supervision.supervisor import Outcome, describe_exit, supervise

__all__ = [
    "Job",
    "Results",
    "SshOptions",
    "command_not_started",
    "raise_for",
    "run_job",
    "tell_store",
]

_KEY_BYTES = 32
_JOB_ID_BYTES = 8
_DRAIN_AFTER_SIGNAL_S = 2.0

_HINTS: Mapping[int, str] = {
    signal.SIGKILL: "If nobody killed it, the machine may be out of memory: see the kernel's log (dmesg).",
    signal.SIGSEGV: "PYTHONFAULTHANDLER=1 in the environment shows where a Python program crashed.",
    signal.SIGBUS: "Often there is no room left in /dev/shm or on a disk that a file is mapped from.",
}


@dataclass(frozen=True)
class Job:
    """What to run, where, and how to show it."""

    command: tuple[str, ...]
    processes: int
    hosts: tuple[HostSlots, ...] = ()
    """Where ranks may be placed; empty: all on this machine."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that command-line options stand for."""
    timestamps: bool = False
    output_directory: Path | None = None
    ssh: SshOptions = field(default_factory=SshOptions)
    call: Sequence[memoryview] = ()
    """What ranks read and answer, if the command calls a function; see `WorkerPlan.call`."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that ranks of different hosts may use; empty: those that work."""
    status: bool | None = None
    """Show a line that tells how far the job is; None: if standard error is a terminal."""


@dataclass
class Results:
    """What ranks sent home, by rank. ``here``: those that this process's own machine runs, so that they
    could do anyway what their bytes might make this process do.
    """

    sent: dict[int, bytearray] = field(default_factory=dict)
    here: set[int] = field(default_factory=set)


def run_job(
    job: Job,
    inherited: Mapping[str, str],
    console: Console,
    results: Results | None = None,
) -> None:
    """Run `job` until nothing of it is left; `inherited` is the environment workers start from. `results` is
    filled with what ranks sent home, also if the job failed.

    Raises:
        ConfigError: there are fewer slots than processes.
        CommandNotStarted: the command cannot be run.
        HostsUnreachable: no process can be started on some hosts.
        WorkerFailed: a rank ended with an error, the first one; or its host was lost.
        JobInterrupted: a signal to this process ended the job.
        LaunchError: the job could not be started or watched.
    """
    slots = _place(job)
    patience_s = failure_patience_s(job.options, inherited)
    names = tuple(dict.fromkeys(slot.hostname for slot in slots))
    ours = names_of_this_machine(names)
    here = tuple(name for name in names if name in ours)
    elsewhere = tuple(name for name in names if name not in here)
    key, job_id = secrets.token_bytes(_KEY_BYTES), secrets.token_hex(_JOB_ID_BYTES)
    # The handlers come first and go last: at no moment does a signal leave processes behind.
    with (
        Signals() as signals,
        Status(console, wanted=job.status, hosts=len(names), ranks=len(slots)) as status,
        closing(load_launcher("ssh" if elsewhere else "local")) as launcher,
    ):
        status.reached = len(here)
        hosts = launcher.prepare(
            Request(
                here=here,
                elsewhere=elsewhere,
                ranks=len(slots),
                ssh=job.ssh,
                inherited=inherited,
                timeout_s=start_timeout_s(job.options, inherited),
                silence_s=silence_s(job.options, inherited),
                signals=signals,
                console=console,
                status=status,
            )
        )
        _tell_places(slots, here, hosts, inherited, console)
        with _make_store(key, job_id, job, hosts, elsewhere) as store:
            console.narrate(f"serving the store at {shown(store.addresses)}")
            plan = _plan(job, slots, hosts, inherited, store, key, console)
            output = Output(len(slots), console, timestamps=job.timestamps, directory=job.output_directory)
            try:
                workers = launcher.start(slots, plan, output)
                output.start()
                try:
                    outcome = supervise(
                        slots, workers, signals, console, status, patience_s, tell_store(store)
                    )
                finally:
                    workers.close()
            finally:
                _drain(output, signals)
                if results is not None:
                    results.sent.update(output.results())
                    results.here.update(slot.rank for slot in slots if slot.hostname in here)
    console.narrate("nothing of the job runs any more")
    raise_for(outcome, job.command[0], output.tail)


def _place(job: Job) -> tuple[Slot, ...]:
    hosts = job.hosts or (HostSlots("localhost", job.processes),)
    return assign_ranks(hosts, job.processes, job.processes)


def _tell_places(
    slots: Sequence[Slot],
    here: Sequence[str],
    hosts: Mapping[str, HostFacts],
    inherited: Mapping[str, str],
    console: Console,
) -> None:
    names_by_machine: dict[str, list[str]] = {}
    for name, facts in hosts.items():
        ranks = [slot.rank for slot in slots if slot.hostname == name]
        what = "this machine" if name in here else "another machine"
        console.narrate(f"host {name} is {what}: ranks {ranks[0]} to {ranks[-1]}")
        names_by_machine.setdefault(facts.machine, []).append(name)
    for names in names_by_machine.values():
        if len(names) > 1 and not set(names) <= set(here):
            console.tell(
                f"{' and '.join(names)} are one machine: local ranks begin at 0 for each of these names, so "
                "its ranks would share devices. Use one name with all slots."
            )
    masks = sorted(name for name in inherited if name.endswith("CUDA_VISIBLE_DEVICES"))
    if masks and here and len(hosts) > len(here):
        console.tell(f"{', '.join(masks)} is kept for the ranks on this machine only: it means its devices.")


def _make_store(
    key: bytes, job_id: str, job: Job, hosts: Mapping[str, HostFacts], elsewhere: Sequence[str]
) -> StoreServer:
    seen = [hosts[name].origin for name in elsewhere]
    bind_hosts = store_hosts(job.interfaces, seen) if elsewhere else [unix.fresh_name()]
    try:
        return StoreServer(key, bind_host=bind_hosts, job=job_id)
    except OSError as error:
        raise LaunchError(
            f"The ranks' store cannot be served on {join_hosts(bind_hosts)}: {error}"
        ) from error


def _plan(
    job: Job,
    slots: Sequence[Slot],
    hosts: Mapping[str, HostFacts],
    inherited: Mapping[str, str],
    store: StoreServer,
    key: bytes,
    console: Console,
) -> WorkerPlan:
    own_environment = {slot.rank: slot_environment(slot) for slot in slots}
    for name, facts in hosts.items():
        placed = [slot.rank for slot in slots if slot.hostname == name]
        threads = compute_threads(inherited, len(placed), facts.cores)
        if threads is not None and "OMP_NUM_THREADS" not in job.options:
            console.narrate(
                f"OMP_NUM_THREADS={threads} on {name} (not set before): "
                f"{facts.cores} cores for {len(placed)} ranks"
            )
            for rank in placed:
                own_environment[rank]["OMP_NUM_THREADS"] = str(threads)
    console.narrate(f"starting {len(slots)} x {shlex.join(job.command)}")
    return WorkerPlan(
        command=job.command,
        environment=job_environment(
            inherited,
            {**interface_environment(job.interfaces), **job.options},
            store=store.addresses,
            secret_key=key,
            job_id=store.job,
        ),
        own_environment=own_environment,
        call=job.call,
    )


def _drain(output: Output, signals: Signals) -> None:
    seen = len(signals.arrived)
    give_up_at = time.monotonic() + _DRAIN_AFTER_SIGNAL_S if seen else float("inf")
    output.drain(lambda: len(signals.arrived) > seen or time.monotonic() > give_up_at)


def raise_for(outcome: Outcome, program: str, tail: Callable[[int], tuple[str, ...]]) -> None:
    """Raise what `run_job` promises, if the job has failed. `tail`: the last lines of a rank."""
    stuck = ""
    if outcome.survivors:
        listed = ", ".join(str(pid) for pid in outcome.survivors)
        stuck = f" Even SIGKILL did not end these processes: {listed}."
    if outcome.refused is not None:
        raise command_not_started(outcome.refused, program, outcome.hosts[outcome.refused.rank])
    if outcome.failure is not None:
        raise _worker_failed(outcome, outcome.failure, tail, stuck)
    if outcome.error is not None:
        raise outcome.error
    if outcome.lost and outcome.signum is None:
        raise _host_lost(outcome, outcome.lost[0], tail)
    if outcome.signum is not None:
        raise JobInterrupted(
            f"{signal_name(outcome.signum)} ended the job after {outcome.elapsed_s:.1f} s.{stuck}",
            signum=outcome.signum,
        )
    if stuck:
        raise LaunchError(f"All ranks succeeded.{stuck}")


def _worker_failed(
    outcome: Outcome, failure: End, tail: Callable[[int], tuple[str, ...]], stuck: str
) -> WorkerFailed:
    host = outcome.hosts[failure.rank]
    sentence = _describe_failure(failure, host, outcome.elapsed_s) + _others_ended(outcome)
    for lost in outcome.lost:
        sentence += f". Host {lost.host} was lost besides: {lost.reason}"
    hint = _HINTS.get(-(failure.exit_code or 0), "")
    return WorkerFailed(
        f"{sentence}.{stuck}{' ' if hint else ''}{hint}",
        rank=failure.rank,
        host=host,
        exit_code=failure.exit_code or 1,
        last_lines=tail(failure.rank),
    )


def tell_store(store: StoreServer) -> Callable[[int, str, str], None]:
    """What lets nobody wait in ``init()`` for a rank that is gone: takes the rank, its host and how it
    went.
    """

    def tell(rank: int, host: str, how: str) -> None:
        text = (
            f"Rank {rank} on host {host} {how}. No world can be formed without it; look at "
            "its own output first."
        )
        store.fail(ROUNDS, Cause(text, (rank,), rank=rank, host=host))

    return tell


def _describe_failure(failure: End, host: str, elapsed_s: float) -> str:
    """What happened to the rank that failed first, without the end of the sentence."""
    sentence = f"rank {failure.rank} on {host} {describe_exit(failure.exit_code)} after {elapsed_s:.1f} s"
    if failure.exit_code == 0:
        return f"{sentence}, while other ranks still needed it"
    if failure.because is not None:
        sentence += f", because of rank {failure.because}"
    if failure.told_by is not None:
        sentence += f", and rank {failure.told_by} needed it"
        return (
            f"{sentence}: the script of rank {failure.told_by} {failure.text}" if failure.text else sentence
        )
    return f"{sentence}: its script {failure.text}" if failure.text else sentence


def _host_lost(outcome: Outcome, lost: HostLost, tail: Callable[[int], tuple[str, ...]]) -> WorkerFailed:
    ranks = ", ".join(str(rank) for rank in lost.ranks)
    many = len(lost.ranks) > 1
    sentence = f"host {lost.host} was lost after {outcome.elapsed_s:.1f} s: {lost.reason}"
    if lost.ranks:
        sentence += f". It ran rank{'s' if many else ''} {ranks}{_others_ended(outcome)}"
    for other in outcome.lost[1:]:
        sentence += f". Host {other.host} was lost, too: {other.reason}"
    rank = lost.ranks[0] if lost.ranks else -1
    return WorkerFailed(f"{sentence}.", rank=rank, host=lost.host, exit_code=1, last_lines=tail(rank))


def _others_ended(outcome: Outcome) -> str:
    if not outcome.ended:
        return ""
    others = "the other rank was" if outcome.ended == 1 else f"{outcome.ended} other ranks were"
    return f"; {others} ended because of it"


def command_not_started(refused: Refused, command: str, host: str) -> CommandNotStarted:
    """Why `command` could not be run on `host`, and what to try."""
    where = "" if host in names_of_this_machine([host]) else f" on {host}"
    if refused.errno in (errno.ENOENT, errno.ENOTDIR):
        if "/" in command and os.path.exists(command):
            why, what = "its interpreter was not found", "Look at its first line."
        else:
            why, what = "not found", "Check its spelling and PATH."
        return CommandNotStarted(f"The command {command} cannot be run{where}: {why}. {what}", exit_code=127)
    if refused.errno == errno.ENOEXEC:
        why, what = "it is neither a program nor a script with an interpreter in its first line", ""
    else:
        why, what = os.strerror(refused.errno).lower(), ""
    if command.endswith(".py"):
        what = f" Did you mean: python {command}?"
    return CommandNotStarted(f"The command {command} cannot be run{where}: {why}.{what}", exit_code=126)
