"""Events: news of the processes of a job, from the way in which they are started."""

from __future__ import annotations

from typing import NamedTuple

from horovod.errors import HorovodError, LaunchError
from horovod.launch.placement.hosts import Slot

__all__ = [
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
    "HostRetried",
    "LeftBehind",
    "PassedOn",
    "Placed",
    "Refused",
    "Rejoined",
    "Said",
    "Started",
    "Stopped",
]


class HostFacts(NamedTuple):
    """Facts that a launcher has found out about a host."""

    machine: str
    """The same text if and only if two names mean one system."""
    cores: int
    origin: str = ""
    """The launching machine's address as this host sees it; empty if unknown."""


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
    """A signal from `Processes.pass_on` has reached `ranks`, which have a handler for it; `others` have
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


class HostRetried(NamedTuple):
    """A host of a `ClosedFleet` could not be reached, and is tried again."""

    host: str
    reason: str


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
    """The job cannot go on, though no rank has failed. `unwatched`: nobody watches its ranks any more, and
    all that could be ended has been; `Finished` follows.
    """

    error: HorovodError
    unwatched: bool = False


class Finished(NamedTuple):
    """No process of the job runs any more, except `survivors`: process ids that even SIGKILL did not end.
    `failure`: why the job has failed, if neither a rank nor a signal was the cause.
    """

    survivors: tuple[int, ...]
    failure: LaunchError | None = None


Event = (
    Placed
    | HostReached
    | HostRetried
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
