"""The contract between supervision and a way of starting processes, and the table of those that exist.

A launcher is one file and one row of the table. It starts the ranks it is given, passes their output to
`Output`, and reports what happens to them as events on a descriptor. The supervisor decides when the ranks
are ended. A launcher whose ranks another program starts only writes the command line of that program;
`horovod.launch.external` does the rest.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from horovod.errors import LaunchError
from horovod.launch.agent_client.ssh_command import SshOptions
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import Output
from horovod.launch.placement.hosts import Slot
from horovod.launch.supervision.signals import Signals

__all__ = [
    "LAUNCHERS",
    "CommandNotStarted",
    "Event",
    "Exited",
    "Failed",
    "Finished",
    "HostFacts",
    "HostLost",
    "HostsUnreachable",
    "JobInterrupted",
    "Launcher",
    "LeftBehind",
    "Placed",
    "Refused",
    "Request",
    "Row",
    "Said",
    "Started",
    "WorkerPlan",
    "Workers",
    "load",
    "load_launcher",
]


class CommandNotStarted(LaunchError):
    """The command cannot be run. ``exit_code`` as a shell has it: 127 not found, 126 not executable."""

    def __init__(self, message: str = "", *, exit_code: int = 126) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class JobInterrupted(LaunchError):
    """A signal told the launcher to end the job. ``exit_code`` is 128 + ``signum``."""

    def __init__(self, message: str = "", *, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum
        self.exit_code = 128 + signum


class HostsUnreachable(LaunchError):
    """No process can be started on some hosts. ``reasons`` by host; ``exit_code`` 124 if time ran out."""

    def __init__(
        self, message: str = "", *, reasons: Mapping[str, str] | None = None, exit_code: int = 1
    ) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})
        self.exit_code = exit_code


@dataclass(frozen=True)
class HostFacts:
    """What a launcher has found out about a host."""

    machine: str
    """The same text if and only if two names mean one system."""
    cores: int
    origin: str = ""
    """The launching machine's address as this host sees it; empty if unknown."""


@dataclass(frozen=True)
class WorkerPlan:
    """What every rank runs, and what differs between them."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    own_environment: Mapping[int, Mapping[str, str]]
    """By rank: what is set on top of `environment`."""
    call: Sequence[memoryview] = ()
    """Bytes that every rank can read, in one piece of memory for each host; then each also has a pipe for
    its result, the stream ``RESULT`` of `Output`. Both descriptors are in the rank's environment, as
    ``HOROVOD_RUN_DESCRIPTORS=call,result``.
    """


@dataclass(frozen=True)
class Placed:
    """Where the ranks are, from a launcher that decides it by itself; comes before all else of them."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Started:
    """`pid` is 0 where the launcher does not know it."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Refused:
    """The command could not be run for `rank`; no further rank was started."""

    rank: int
    errno: int


@dataclass(frozen=True)
class Exited:
    """`exit_code` is negative for a rank that a signal ended. `told`: it was being ended before, by whoever
    watches it there, so this says nothing about the cause.
    """

    rank: int
    exit_code: int
    told: bool = False


@dataclass(frozen=True)
class Said:
    """A word of a rank about itself (`horovod.bootstrap.starter`); its last ones come before it has
    `Exited`.
    """

    rank: int
    line: str


@dataclass(frozen=True)
class LeftBehind:
    """All ranks have ended, but `processes` that they started have not and are being ended."""

    processes: int


@dataclass(frozen=True)
class HostLost:
    """A host cannot be watched any more: it is silent, or its agent or connection ended. Its ranks are ended
    by their agent there as soon as that notices, if it lives.
    """

    host: str
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Failed:
    """The job cannot go on, though no rank has failed."""

    error: LaunchError


@dataclass(frozen=True)
class Finished:
    """No process of the job runs any more, except `survivors`: process ids that even SIGKILL did not end.
    `failure`: why the job has failed, if neither a rank nor a signal was the cause.
    """

    survivors: tuple[int, ...]
    failure: LaunchError | None = None


Event = Placed | Started | Failed | Said | Refused | Exited | LeftBehind | HostLost | Finished


class Workers(Protocol):
    """Running ranks. `Finished` is the last event; then call `close`."""

    def fileno(self) -> int:
        """Becomes readable when `events` has something."""

    def events(self) -> Sequence[Event]:
        """What happened since the last call, in order.

        Raises:
            LaunchError: the ranks can no longer be watched; all that could be ended has been.
        """

    def end(self, signum: int) -> None:
        """Send `signum` to everything the job runs, and SIGKILL to what is left after the grace time."""

    def kill(self) -> None:
        """Send SIGKILL to everything the job runs, now."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Request:
    """Which hosts a launcher has to find, and how."""

    here: tuple[str, ...]
    """Names of this machine."""
    elsewhere: tuple[str, ...]
    ranks: int
    ssh: SshOptions
    inherited: Mapping[str, str]
    """The launcher's environment."""
    timeout_s: float
    silence_s: float
    """A host that is not heard for so long is lost, and its ranks end when they do not hear the launcher."""
    signals: Signals
    console: Console
    status: Status


class Launcher(Protocol):
    """A way of starting processes. `prepare` comes first, `close` last, whatever happens between."""

    def prepare(self, request: Request) -> Mapping[str, HostFacts]:
        """Find the hosts and what they are, by name.

        Raises:
            HostsUnreachable: some of them.
            JobInterrupted: a signal came.
        """

    def start(self, slots: Sequence[Slot], plan: WorkerPlan, output: Output) -> Workers:
        """Start one process per slot; what it prints is attached to `output`.

        Whatever happens to the launching process, even SIGKILL, ends the ranks.

        Raises:
            LaunchError: nothing could be started.
        """

    def close(self) -> None:
        """End what is left. Idempotent."""


@dataclass(frozen=True)
class Row:
    """What is known of a launcher before it is imported."""

    name: str
    where: str
    """``module:attribute`` of a class that is a `Launcher`; or, with a `program`, of a function that makes a
    `StartLine` of an `Order` (`horovod.launch.external.order`).
    """
    program: str = ""
    """What starts the ranks, found on PATH; empty: we do."""
    missing: str = ""
    """What to say and try where there is no such program."""
    rank_variables: tuple[str, ...] = ()
    """How a rank learns who it is: by the first of these that the program sets, each the variable of a
    family in `horovod.bootstrap.launchers`; those of an enclosing launcher must not be taken for it. Empty:
    by the variables that we set.
    """
    lsf: bool = False
    """Is for jobs of LSF only, and there used without being asked for."""
    stays_here: bool = False
    """Hosts that nobody has named are this machine."""


LAUNCHERS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row("local", "horovod.launch.launchers.local:LocalLauncher", stays_here=True),
        Row("ssh", "horovod.launch.launchers.ssh:SshLauncher", stays_here=True),
        Row(
            "mpirun",
            "horovod.launch.launchers.mpirun:start_line",
            program="mpirun",
            missing="--mpi and --launcher mpirun need mpirun, which is not on PATH. Install Open MPI, MPICH "
            "or Intel MPI (or load its module), or leave the option out: MPI is not needed.",
            rank_variables=("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK"),
            stays_here=True,
        ),
        Row(
            "srun",
            "horovod.launch.launchers.srun:start_line",
            program="srun",
            missing="--launcher srun needs Slurm's srun, which is not on PATH. Leave the option out, or run "
            "this where Slurm is installed.",
            rank_variables=("SLURM_PROCID",),
        ),
        Row(
            "jsrun",
            "horovod.launch.launchers.jsrun:start_line",
            program="jsrun",
            missing="--jsrun needs jsrun, which is not on PATH. Use --gloo or --mpi in its place.",
            rank_variables=("JSM_NAMESPACE_RANK", "OMPI_COMM_WORLD_RANK"),
            lsf=True,
        ),
    )
}


def load(name: str) -> Any:
    """What `Row.where` names; imported when first asked for."""
    module, _, attribute = LAUNCHERS[name].where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_launcher(name: str) -> Launcher:
    return cast(Launcher, load(name)())
