"""The contract between a job and a way of starting processes: hosts, and workers on them.

A fleet decides nothing: which hosts are tried and when, which workers run where, and what an end means is up
to its user. A `Fleet` is for elastic jobs, whose hosts and workers come and go, a `ClosedFleet` for those
whose workers are all started at once. Which launchers have them is said by `registry`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.secret import KEY_BYTES
from horovod.launch.contracts.events import Event
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.signals import Signals
from horovod.launch.environment import Limits
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import RESULT, STREAMS, Output
from horovod.launch.placement.hosts import Slot

__all__ = [
    "ClosedFleet",
    "Fleet",
    "FleetPlan",
    "FleetWorker",
    "Grounds",
    "MakeClosedFleet",
    "MakeFleet",
    "Processes",
    "Request",
]

_JOB_ID_BYTES = 8


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


class FleetPlan(NamedTuple):
    """Plan that all workers have in common."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    call: Sequence[memoryview] = ()
    """Bytes that every worker can read, in one piece of memory for each host; then each also has a pipe for
    its result, the stream ``RESULT`` of `Output`. Both descriptors are in the worker's environment, as
    ``HOROVOD_RUN_DESCRIPTORS=call,result``.
    """
    patience_s: float = 0.0
    """Seconds that hosts and workers wait for another launcher when this one is gone; 0: they end with it."""
    secret: str = ""
    """Of the job, if they wait: who knows it and is the same user finds them."""
    call_is_input: bool = False
    """Every worker reads `call` on its standard input instead, from the beginning; there is no result."""
    stdin: int = -1
    """Of a `ClosedFleet`: a descriptor of this process that is the standard input of worker 0; -1: none."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams of each worker."""
        return (*STREAMS, RESULT) if self.call and not self.call_is_input else STREAMS


class FleetWorker(NamedTuple):
    """One process to start."""

    number: int
    """Number of the worker in events (`rank` there) and methods of `Output`. Never used again in a job."""
    host: str
    own_environment: Mapping[str, str]
    """Set on top of that of the plan."""
    label: int
    """Label of its output, ``[label]<stdout>:``, and of its files, ``rank.<label>``: they go on where an
    earlier worker with that label has left them.
    """


@dataclass(frozen=True)
class Grounds:
    """Facts and wishes of a `ClosedFleet` before its hosts are reached."""

    store_hosts: Sequence[str] | None
    """Addresses of this machine, or the name of a Unix socket, at which the ranks' store is served. None:
    they follow from where the hosts see this machine (`HostFacts.origin`).
    """
    places: bool = False
    """The fleet places the ranks by itself, and says later where (`Placed`)."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    job_id: str = field(default_factory=lambda: secrets.token_hex(_JOB_ID_BYTES))
    carries_key: bool = True
    """The key is in the environment of the plan: on its way to the ranks nobody sees it."""
    reserved: Collection[str] = ()
    """Members of ``store_hosts`` that are opened later (`StoreServer.widen`)."""


class Processes(Protocol):
    """Processes of a job that have been started. One thread calls all of it, and nothing here waits."""

    def pass_on(self, signum: int) -> None:
        """Send `signum` to those workers that have a handler for it; `PassedOn` says which these are, those
        of each host together.
        """

    def fileno(self) -> int:
        """Becomes readable when `events` has something."""

    def events(self) -> Sequence[Event]:
        """Events since the last call, in order. Raises nothing: a host that does something wrong is lost, and
        where the job cannot go on it has `Failed`.
        """

    def finish(self, signum: int) -> None:
        """Send `signum` to all workers and what they have started, SIGKILL to what is left after the grace
        time of 5 s, then end the connections. `Finished` is the last event. Nothing can be reached or started
        any more, and hosts that are being reached are left at once.
        """

    def kill(self) -> None:
        """Send SIGKILL to everything, now; and `finish`."""

    def close(self) -> None:
        """End what is left, within a limit. Idempotent."""


class ClosedFleet(Processes, Protocol):
    """Hosts and workers that are all known before the first of them starts. In this order: `grounds`, `reach`
    for each host, `serve`, `start`.

    It says `Finished` by itself when nothing runs any more: nobody asks a job that goes well to end, and what
    ranks have left behind is ended here (`LeftBehind`). `finish` or `kill` means that the job has failed, or
    that a signal has come. `finish` comes at most once. There is no `Gone`. What is to happen at a certain
    time, such as the end of its patience with a program, is up to a thread of its own.
    """

    def grounds(self) -> Grounds:
        """The first call.

        Raises:
            ConfigError: it cannot do what the job asks for.
            LaunchError: this machine has no room for it.
        """

    def reach(self, host: str) -> None:
        """Begin to connect. Then comes `HostReached`, or `HostLost` without ranks, which says why not, maybe
        after several attempts (`HostRetried`). The user gives up, by `finish`, after the limit for the start.
        """

    def serve(self, plan: FleetPlan, store: StoreServer | None) -> None:
        """The store of the job is there and serves, at addresses that are in the plan. Comes once, when all
        hosts have been reached, before `start`. None: it is not ours.
        """

    def start(self, workers: Sequence[FleetWorker]) -> None:
        """Start all workers of the job; the number of each is its rank. Comes once. Then come, for each,
        `Started` or `Refused`, maybe `FewDevices`, `Said`, `Stopped` and `Continued`, and `Exited`; or its
        number is among the ranks of `HostLost`. After `Refused` the others of its host have been ended.

        A fleet that places ranks by itself (`Grounds.places`) has one host, without a name, which is reached
        at once. It is told as many workers as there shall be, without environments, and says `Placed` before
        all else of them; or `Failed` if too few have come within the limit for the start.

        Raises:
            LaunchError: nothing could be started.
        """

    def awaited(self) -> str:
        """Say what the start waits for, as a part of a sentence: "2 tasks of Spark were awaited"; empty if
        that is nothing, or has no name.
        """
        return ""


class Fleet(Processes, Protocol):
    """Hosts that come and go, and workers on them, each known by its number.

    Nothing has to be asked in a certain order: what comes too late, because an event has not been read yet,
    has no effect but the one that is said. `Finished` comes only after `finish`.
    """

    def reach(self, host: str) -> None:
        """Begin to connect. Within the limit for the start comes `HostReached`; or `HostLost` without ranks,
        which says why not. There is no second attempt without another call.

        A host that is lost, or was dropped, may be reached again: that begins when the former connection has
        ended, and with it all that ran there, as far as it can be known. No effect on a host that is being
        reached or has been.
        """

    def rejoin(self, host: str, workers: Sequence[FleetWorker]) -> None:
        """Begin to connect with a host where another launcher had these workers, not gone yet as far as it
        knew. Within the limit for the start come `HostReached`, what has happened to them since they were
        begun (also what the other launcher had heard), and `Rejoined`; or `HostLost` with all of them. In
        place of `reach`. Without workers, too: where nothing of the other launcher is left, all is as after
        `reach`, but for `Rejoined`.

        Raises:
            LaunchError: their files cannot be opened.
        """

    def start(self, worker: FleetWorker) -> None:
        """Start it on a host that has been reached. Then come `Started` or `Refused`, maybe `FewDevices`,
        `Said`, `Stopped` and `Continued`, `Exited`, maybe `LeftBehind`, and as the last one `Gone`; or the
        number is among the ranks of `HostLost`. `Refused` means this worker only. `Exited` is `told` if it
        was being ended before.

        What is started on a host that is lost already, though that has not been read yet, is among its ranks.

        Raises:
            LaunchError: its files cannot be opened; nothing was started.
            ValueError: the host has not been reached, or was lost or dropped, or the number is in use.
        """

    def end(self, numbers: Collection[int], signum: int) -> None:
        """Send `signum` to these workers and what they have started, SIGKILL to what is left after the grace
        time of 5 s. If it is SIGKILL, that has an effect on workers that are being ended, too. None of it has
        one on those that have ended.
        """

    def doubt(self, host: str) -> None:
        """Others hold a host for silent: until something is heard from it, it is lost after a quarter of the
        usual silence. No effect on a host that is not there.
        """

    def drop(self, host: str) -> None:
        """End all workers there with SIGTERM, as `end` does, and then the connection; what has not ended
        within a limit is left to the agent there. Their `Exited` come as far as they are known, `told` if
        this was the reason; `Gone` need not come, nor does `HostLost`. No effect on a host that is not there.
        """


class MakeFleet(Protocol):
    """Makes the fleet of a launcher. Nothing runs anywhere yet."""

    def __call__(self, request: Request, plan: FleetPlan, output: Output, store: StoreServer) -> Fleet:
        """
        Args:
            request: of the job; its slots and hosts mean nothing here. Of its limits ``start_s`` and
                ``silence_s`` are used.
            output: what workers print and return goes there. The caller starts and drains it.
            store: of the job, which is being served.

        Raises:
            LaunchError: this machine has no room for it.
        """


class MakeClosedFleet(Protocol):
    """Makes the fleet of a launcher for a job whose ranks are known. Nothing runs anywhere yet."""

    def __call__(self, request: Request, output: Output) -> ClosedFleet:
        """
        Args:
            request: of the job; of its limits ``start_s`` and ``silence_s`` are used.
            output: what workers print and return goes there. The caller starts and drains it; it is drained
                after `close`.
        """
