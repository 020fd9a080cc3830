"""The contract between an elastic job and a way of starting processes: hosts that come and go, and workers.

A fleet stands beside `Workers`, whose ranks and hosts are known before they start. It decides nothing: which
hosts are tried and when, how many workers run where, and what an end means is up to its user. Which launchers
have one is said by `horovod.launch.contracts.registry`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from horovod.bootstrap.store.server import StoreServer
from horovod.launch.contracts.events import Event
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.signals import Signals
from horovod.launch.environment import Limits
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.output.streams import RESULT, STREAMS, Output
from horovod.launch.placement.hosts import Slot

__all__ = ["Fleet", "FleetPlan", "FleetWorker", "MakeFleet", "Request"]


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
    """As `WorkerPlan.call`; results are in ``Output.results()`` by the number of the worker."""
    patience_s: float = 0.0
    """Seconds that hosts and workers wait for another launcher when this one is gone; 0: they end with it."""
    secret: str = ""
    """Of the job, if they wait: who knows it and is the same user finds them."""
    call_is_input: bool = False
    """As `WorkerPlan.call_is_input`."""

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


class Fleet(Protocol):
    """Hosts that come and go, and workers on them, each known by its number.

    One thread calls all of it, and nothing here waits. Nothing has to be asked in a certain order: what comes
    too late, because an event has not been read yet, has no effect but the one that is said.
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

    def pass_on(self, signum: int) -> None:
        """Send `signum` to those workers that have a handler for it; `PassedOn` says which these are, those
        of each host together.
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

    def fileno(self) -> int:
        """Becomes readable when `events` has something."""

    def events(self) -> Sequence[Event]:
        """Events since the last call, in order. Raises nothing: a host that does something wrong is lost."""

    def finish(self, signum: int) -> None:
        """End all workers, as `end` does, and the connections. `Finished` is the last event. Nothing can be
        reached or started any more.
        """

    def kill(self) -> None:
        """Send SIGKILL to everything, now; and `finish`."""

    def close(self) -> None:
        """End what is left, within a limit. Idempotent."""


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
