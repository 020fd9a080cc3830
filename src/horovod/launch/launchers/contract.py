"""The contract between a job and a way of starting processes.

A launcher is one file and one row of `registry`. It finds the hosts, starts the ranks, passes their output
and results to `Output`, and reports what happens to them as events on a descriptor. The supervisor decides
when the ranks are ended. A launcher whose ranks a program starts only writes the command line of that
program; `horovod.launch.external` does the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.secret import KEY_BYTES
from horovod.errors import LaunchError
from horovod.launch.environment import Limits
from horovod.launch.job import Job
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import RESULT, STREAMS, Output
from horovod.launch.placement.hosts import Slot
from horovod.launch.supervision.signals import Signals

__all__ = [
    "CommandNotStarted",
    "Continued",
    "Event",
    "Exited",
    "Failed",
    "FewDevices",
    "Finished",
    "Gone",
    "HostFacts",
    "HostLost",
    "HostReached",
    "HostsUnreachable",
    "JobInterrupted",
    "Launcher",
    "LauncherFailed",
    "LeftBehind",
    "PassedOn",
    "Placed",
    "Prepared",
    "Refused",
    "Request",
    "Said",
    "Started",
    "Stopped",
    "WorkerPlan",
    "Workers",
]

_JOB_ID_BYTES = 8


class CommandNotStarted(LaunchError):
    """The command cannot be run. ``exit_code`` as a shell has it: 127 not found, 126 not executable."""

    def __init__(self, message: str = "", *, exit_code: int = 126) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LauncherFailed(LaunchError):
    """The program that starts the ranks failed; ``exit_code`` is its exit status."""

    def __init__(self, message: str = "", *, exit_code: int = 1) -> None:
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


class HostFacts(NamedTuple):
    """Facts that a launcher has found out about a host."""

    machine: str
    """The same text if and only if two names mean one system."""
    cores: int
    origin: str = ""
    """The launching machine's address as this host sees it; empty if unknown."""


@dataclass(frozen=True)
class Prepared:
    """Facts and wishes of a launcher before the ranks are started."""

    store_hosts: Sequence[str]
    """Addresses of this machine, or the name of a Unix socket, at which the ranks' store is served."""
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    """All hosts by name; empty: the launcher places the ranks by itself, and says later where (`Placed`)."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    job_id: str = field(default_factory=lambda: secrets.token_hex(_JOB_ID_BYTES))
    carries_key: bool = True
    """The key is in the environment of the plan: on its way to the ranks nobody sees it."""
    reserved: Collection[str] = ()
    """Members of ``store_hosts`` that are opened later (`StoreServer.widen`)."""


class WorkerPlan(NamedTuple):
    """Plan for the ranks: what every one of them runs, and what differs between them."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    own_environment: Mapping[int, Mapping[str, str]]
    """By rank: what is set on top of `environment`."""
    call: Sequence[memoryview] = ()
    """Bytes that every rank can read, in one piece of memory for each host; then each also has a pipe for
    its result, the stream ``RESULT`` of `Output`. Both descriptors are in the rank's environment, as
    ``HOROVOD_RUN_DESCRIPTORS=call,result``.
    """
    call_is_input: bool = False
    """Every rank reads `call` on its standard input instead, from the beginning; there is no result."""
    stdin: int = -1
    """A descriptor of this process that rank 0 reads as its standard input; -1: it reads nothing."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams of each rank."""
        return (*STREAMS, RESULT) if self.call and not self.call_is_input else STREAMS


# Events are named tuples, not frozen dataclasses: those take 0.4 ms each to define, in every `horovodrun`.


class Placed(NamedTuple):
    """Slots of the ranks, from a launcher that places them by itself; comes before all else of them."""

    slots: tuple[Slot, ...]


class Started(NamedTuple):
    """`pid` is 0 where the launcher does not know it."""

    rank: int
    pid: int


class Refused(NamedTuple):
    """The command could not be run for `rank`; no further rank was started."""

    rank: int
    errno: int


class Exited(NamedTuple):
    """`exit_code` is negative for a rank that a signal ended. `told`: it was being ended before, by whoever
    watches it there, so this says nothing about the cause.
    """

    rank: int
    exit_code: int
    told: bool = False


class Said(NamedTuple):
    """A word of a rank about itself (`horovod.bootstrap.place.starter`); its last ones come before it has
    `Exited`.
    """

    rank: int
    line: str


class Stopped(NamedTuple):
    """The process of a rank was stopped by a signal, such as SIGSTOP, or it is a worker of a `Fleet` whose
    control group is frozen: it does nothing until it has `Continued`, or is killed. One that a debugger holds
    is not.
    """

    rank: int


class Continued(NamedTuple):
    """A rank that was `Stopped` goes on."""

    rank: int


class PassedOn(NamedTuple):
    """A signal from `Workers.pass_on` has reached `ranks`, which have a handler for it; `others` have
    none, and did not.
    """

    signum: int
    ranks: tuple[int, ...]
    others: tuple[int, ...]


class FewDevices(NamedTuple):
    """Each rank was to see a device of its own, but the host of `rank` has only so many for its ranks."""

    rank: int
    devices: int
    ranks: int


class LeftBehind(NamedTuple):
    """All ranks have ended, or this `rank` of a `Fleet` has, but `processes` that they started have not and
    are being ended.
    """

    processes: int
    rank: int | None = None


class Gone(NamedTuple):
    """The last event of a worker of a `Fleet`: nothing of it runs any more, its devices and ports are free,
    except for `survivors`: process ids that even SIGKILL did not end. It may be one, and never have `Exited`.
    """

    rank: int
    survivors: tuple[int, ...] = ()


class HostReached(NamedTuple):
    """Workers of a `Fleet` can be started there."""

    host: str
    facts: HostFacts


class Rejoined(NamedTuple):
    """All that happened on a host to the workers of a launcher before this one has been told."""

    host: str
    missing: tuple[int, ...]
    """These were never begun there."""


class HostLost(NamedTuple):
    """A host cannot be watched any more: it is silent, or its agent or connection ended. Its ranks are ended
    by their agent there as soon as that notices, if it lives.
    """

    host: str
    ranks: tuple[int, ...]
    reason: str


class Failed(NamedTuple):
    """The job cannot go on, though no rank has failed."""

    error: LaunchError


class Finished(NamedTuple):
    """No process of the job runs any more, except `survivors`: process ids that even SIGKILL did not end.
    `failure`: why the job has failed, if neither a rank nor a signal was the cause.
    """

    survivors: tuple[int, ...]
    failure: LaunchError | None = None


Event = (
    Placed
    | HostReached
    | Rejoined
    | Started
    | Failed
    | FewDevices
    | PassedOn
    | Said
    | Stopped
    | Continued
    | Refused
    | Exited
    | LeftBehind
    | Gone
    | HostLost
    | Finished
)


class Workers(Protocol):
    """Running ranks. `Finished` is the last event; then call `close`."""

    def fileno(self) -> int:
        """Becomes readable when `events` has something."""

    def events(self) -> Sequence[Event]:
        """Events since the last call, in order.

        Raises:
            LaunchError: the ranks can no longer be watched; all that could be ended has been.
        """

    def end(self, signum: int) -> None:
        """Send `signum` to everything the job runs, and SIGKILL to what is left after the grace time."""

    def kill(self) -> None:
        """Send SIGKILL to everything the job runs, now."""

    def pass_on(self, signum: int) -> None:
        """Send `signum` to the ranks that have a handler for it; `PassedOn` says which these are, those of
        each host together. No effect on a job that is being ended.
        """

    def close(self) -> None: ...


class Request(NamedTuple):
    """Request to a launcher, before its ranks are started: the job, and what is known of it."""

    job: Job
    slots: tuple[Slot, ...]
    here: tuple[str, ...]
    """Names of this machine among the hosts of the slots."""
    elsewhere: tuple[str, ...]
    all_here: bool
    """All ranks will be on this machine; not if nobody has named hosts and the launcher knows others."""
    inherited: Mapping[str, str]
    """The environment that ranks start from."""
    limits: Limits
    signals: Signals
    console: Console
    status: Status


class Launcher(Protocol):
    """A way of starting processes. `prepare` comes first, `close` last, whatever happens between."""

    def prepare(self, request: Request) -> Prepared:
        """Find the hosts and what they are.

        Raises:
            ConfigError: it cannot do what the job asks for.
            HostsUnreachable: some of the hosts.
            JobInterrupted: a signal came.
        """

    def start(self, slots: Sequence[Slot], plan: WorkerPlan, store: StoreServer, output: Output) -> Workers:
        """Start one process per slot; what it prints and returns goes to `output`. No slots: see `Prepared`.

        Whatever happens to the launching process, even SIGKILL, ends the ranks.

        Raises:
            LaunchError: nothing could be started.
        """

    def close(self) -> None:
        """End what is left. Idempotent."""
