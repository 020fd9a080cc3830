"""The job that the options ask for, and the table of where its ranks would run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.registry import LAUNCHERS
from horovod.launch.options.values import LaunchOptions
from horovod.launch.phrases import counted
from horovod.launch.placement.addresses import names_of_this_machine
from horovod.launch.placement.allocations import room_here
from horovod.launch.placement.hosts import (
    Allocated,
    HostSlots,
    named,
    named_hosts,
    too_few_slots,
)

__all__ = ["rank_map", "to_job"]


def to_job(
    options: LaunchOptions,
    allocated: Allocated | None = None,
    tell: Callable[[str], object] = lambda notice: None,
) -> Job:
    """Make the job that the options ask for.

    Args:
        options: those of the command line.
        allocated: counts if the options name no hosts.
        tell: is told of the number of processes that fits this machine, if nobody has said how many.

    Raises:
        ConfigError: hosts cannot be read, or there is no number of processes.
        LaunchError: the host file cannot be read.
    """
    hosts = named_hosts(options.hosts, options.hostfile) or (allocated.hosts if allocated is not None else ())
    meant = allocated.processes if allocated is not None and not options.finds_hosts else 0
    given = options.processes
    if options.elastic is not None:
        given = given or options.elastic.min_num_proc  # as many as training may go on with
    processes = given or meant or sum(host.slots for host in hosts)
    if not processes and hosts:
        raise ConfigError(
            "The hosts have no slots: how many processes? Give some of them slots, as in -H server1:4."
        )
    if not processes:
        processes = _processes_here(options.launcher, tell)
    if allocated is not None and hosts == allocated.hosts and options.elastic is None:
        _check_room(allocated, processes)
    return Job(
        command=options.command,
        processes=processes,
        hosts=hosts,
        arguments=options.launcher_arguments,
        binding=options.binding,
        tcp=options.tcp,
        options=options.variables,
        timestamps=options.timestamps,
        output_directory=options.output_directory,
        shown=_shown_ranks(options.shown_ranks, processes),
        ssh=options.ssh,
        interfaces=options.interfaces,
        status=options.status,
    )


def rank_map(job: Job) -> str:
    """A table of where each rank of `job` would run.

    Raises:
        ConfigError: there are fewer slots than processes.
    """
    rows = [("rank", "host", "local rank", "cross rank")]
    for slot in job.place():
        local = f"{slot.local_rank} of {slot.local_size}"
        rows.append((str(slot.rank), slot.hostname, local, f"{slot.cross_rank} of {slot.cross_size}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _processes_here(launcher: str | None, tell: Callable[[str], object]) -> int:
    """Number of processes that fit this machine, if the ranks will be on it."""
    if launcher is not None and not LAUNCHERS[launcher].stays_here:
        raise ConfigError(
            f"-np is missing: how many processes? {launcher} may start them on other machines, of "
            "which nothing is known here."
        )
    room = room_here(os.environ)
    tell(f"{counted(room.processes, 'process', 'processes')} on this machine: {room.why} (-np N decides)")
    return room.processes


def _check_room(allocated: Allocated, processes: int) -> None:
    """
    Raises:
        ConfigError: the allocation has fewer slots. Its nodes may have cores enough: Slurm counts tasks.
    """
    slots = sum(host.slots for host in allocated.hosts)
    if processes <= slots:
        return
    share = -(-processes // len(allocated.hosts))
    names = [host.name for host in allocated.hosts]
    if len(names) == 1 and names_of_this_machine(names):
        names = ["localhost"]
    wanted = named(HostSlots(name, share) for name in names)
    tasks = f" (sbatch, salloc or srun: --ntasks={processes})" if allocated.slurm_job else ""
    raise ConfigError(
        f"{too_few_slots(processes, slots)} of {allocated.source} ({named(allocated.hosts)}). Ask it for "
        f"more{tasks}; or, if their cores are enough, say how many each is to run: -H {wanted}"
    )


def _shown_ranks(ranges: Sequence[range] | None, processes: int) -> frozenset[int] | None:
    """The ranks whose output is shown; None: all."""
    if ranges is None:
        return None
    last = max(ranks[-1] for ranks in ranges)
    if last >= processes:
        raise ConfigError(f"--show-ranks names rank {last}, but the last of {processes} is {processes - 1}.")
    return frozenset(rank for ranks in ranges for rank in ranks)
