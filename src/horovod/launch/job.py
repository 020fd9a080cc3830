"""One job from placing its ranks to its end."""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from horovod.bootstrap.store import StoreServer
from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.console import Console
from horovod.launch.environment import compute_threads, job_environment, slot_environment
from horovod.launch.hosts import HostSlots, Slot, assign_ranks, is_this_machine
from horovod.launch.launcher import (
    CommandNotStarted,
    Exited,
    JobInterrupted,
    Refused,
    WorkerPlan,
    load_launcher,
)
from horovod.launch.output import Output
from horovod.launch.supervisor import Outcome, Signals, describe_exit, signal_name, supervise

__all__ = ["Job", "SshOptions", "run_job"]

_KEY_BYTES = 32
_JOB_ID_BYTES = 8
_DRAIN_AFTER_SIGNAL_S = 2.0

_HINTS: Mapping[int, str] = {
    signal.SIGKILL: "If nobody killed it, the machine may be out of memory: see the kernel's log (dmesg).",
    signal.SIGSEGV: "PYTHONFAULTHANDLER=1 in the environment shows where a Python program crashed.",
    signal.SIGBUS: "Often there is no room left in /dev/shm or on a disk that a file is mapped from.",
}


@dataclass(frozen=True)
class SshOptions:
    """How other hosts are reached. None and empty: as the user's ssh configuration says."""

    port: int | None = None
    identity_file: str | None = None
    arguments: tuple[str, ...] = ()
    """Further words for ``ssh``, before the host."""


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
    ssh: SshOptions = SshOptions()
    interfaces: tuple[str, ...] = ()
    """Network interfaces that ranks of different hosts may use; empty: those that work."""


def run_job(job: Job, inherited: Mapping[str, str], console: Console) -> None:
    """Run `job` until nothing of it is left; `inherited` is the environment workers start from.

    Raises:
        ConfigError: there are fewer slots than processes.
        CommandNotStarted: the command cannot be run.
        WorkerFailed: a rank ended with an error; the first one.
        JobInterrupted: a signal to this process ended the job.
        LaunchError: the job could not be started or watched.
    """
    slots = _place(job, console)
    key = secrets.token_bytes(_KEY_BYTES)
    # The handlers come first and go last: at no moment does a signal leave processes behind.
    with Signals() as signals, _make_store(key) as store:
        console.narrate("serving the store at {}:{}".format(*store.address))
        plan = _plan(job, slots, inherited, store.address, key, console)
        output = Output(len(slots), console, timestamps=job.timestamps, directory=job.output_directory)
        try:
            workers = load_launcher("local").start(slots, plan, output)
            output.start()
            try:
                outcome = supervise(slots, workers, signals, console)
            finally:
                workers.close()
        finally:
            _drain(output, signals)
    console.narrate("nothing of the job runs any more")
    _raise_for(outcome, job, slots, output)


def _place(job: Job, console: Console) -> tuple[Slot, ...]:
    hosts = job.hosts or (HostSlots("localhost", job.processes),)
    slots = assign_ranks(hosts, job.processes, job.processes)
    for name in dict.fromkeys(slot.hostname for slot in slots):
        if not is_this_machine(name):
            raise LaunchError(
                f"Host {name} is not this machine, and this version starts processes on this machine only. "
                "Use -H localhost:N, or start one process per rank with your cluster's own launcher."
            )
        ranks = [slot.rank for slot in slots if slot.hostname == name]
        console.narrate(f"host {name} is this machine: ranks {ranks[0]} to {ranks[-1]}")
    return slots


def _make_store(key: bytes) -> StoreServer:
    try:
        return StoreServer(key, bind_host="127.0.0.1", port=0)
    except OSError as error:
        raise LaunchError(f"The ranks' store cannot be served on 127.0.0.1: {error}") from error


def _plan(
    job: Job,
    slots: Sequence[Slot],
    inherited: Mapping[str, str],
    store_address: tuple[str, int],
    key: bytes,
    console: Console,
) -> WorkerPlan:
    options = dict(job.options)
    cores = len(os.sched_getaffinity(0))
    threads = compute_threads(inherited, len(slots), cores)
    if threads is not None:
        options["OMP_NUM_THREADS"] = str(threads)
        console.narrate(f"OMP_NUM_THREADS={threads} (not set before): {cores} cores for {len(slots)} ranks")
    console.narrate(f"starting {len(slots)} x {shlex.join(job.command)}")
    return WorkerPlan(
        command=job.command,
        environment=job_environment(
            inherited,
            options,
            store_address=store_address,
            secret_key=key,
            job_id=secrets.token_hex(_JOB_ID_BYTES),
        ),
        own_environment={slot.rank: slot_environment(slot) for slot in slots},
    )


def _drain(output: Output, signals: Signals) -> None:
    seen = len(signals.arrived)
    give_up_at = time.monotonic() + _DRAIN_AFTER_SIGNAL_S if seen else float("inf")
    output.drain(lambda: len(signals.arrived) > seen or time.monotonic() > give_up_at)


def _raise_for(outcome: Outcome, job: Job, slots: Sequence[Slot], output: Output) -> None:
    stuck = ""
    if outcome.survivors:
        listed = ", ".join(str(pid) for pid in outcome.survivors)
        stuck = f" Even SIGKILL did not end these processes: {listed}."
    if outcome.refused is not None:
        raise _not_started(outcome.refused, job.command[0])
    if outcome.failure is not None:
        raise _worker_failed(outcome, outcome.failure, slots, output, stuck)
    if outcome.signum is not None:
        raise JobInterrupted(
            f"{signal_name(outcome.signum)} ended the job after {outcome.elapsed_s:.1f} s.{stuck}",
            signum=outcome.signum,
        )
    if stuck:
        raise LaunchError(f"All ranks succeeded.{stuck}")


def _worker_failed(
    outcome: Outcome, failure: Exited, slots: Sequence[Slot], output: Output, stuck: str
) -> WorkerFailed:
    host = slots[failure.rank].hostname
    happened = describe_exit(failure.exit_code)
    sentence = f"rank {failure.rank} on {host} {happened} after {outcome.elapsed_s:.1f} s"
    if outcome.ended:
        others = "the other rank was" if outcome.ended == 1 else f"{outcome.ended} other ranks were"
        sentence += f"; {others} ended because of it"
    hint = _HINTS.get(-failure.exit_code, "")
    return WorkerFailed(
        f"{sentence}.{stuck}{' ' if hint else ''}{hint}",
        rank=failure.rank,
        host=host,
        exit_code=failure.exit_code,
        last_lines=output.tail(failure.rank),
    )


def _not_started(refused: Refused, command: str) -> CommandNotStarted:
    if refused.errno in (errno.ENOENT, errno.ENOTDIR):
        if "/" in command and os.path.exists(command):
            why, what = "its interpreter was not found", "Look at its first line."
        else:
            why, what = "not found", "Check its spelling and PATH."
        return CommandNotStarted(f"The command {command} cannot be run: {why}. {what}", exit_code=127)
    if refused.errno == errno.ENOEXEC:
        why, what = "it is neither a program nor a script with an interpreter in its first line", ""
    else:
        why, what = os.strerror(refused.errno).lower(), ""
    if command.endswith(".py"):
        what = f" Did you mean: python {command}?"
    return CommandNotStarted(f"The command {command} cannot be run: {why}.{what}", exit_code=126)
