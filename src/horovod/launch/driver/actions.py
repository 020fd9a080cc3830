"""Actions that the driver of a job asks for; its course carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from horovod.bootstrap.store.membership import Answer, Six

__all__ = [
    "Action",
    "AnnounceEnd",
    "Doubt",
    "Drop",
    "End",
    "Finish",
    "Forget",
    "Kill",
    "Log",
    "Notify",
    "Over",
    "Reach",
    "Say",
    "Spoil",
    "Start",
    "Tell",
    "Widen",
    "WorkerEnd",
]


class Reach(NamedTuple):
    """Connect with a host, so that workers can be started there."""

    host: str


class Drop(NamedTuple):
    """Nothing more is wanted of a host; what still runs there is ended."""

    host: str


class Doubt(NamedTuple):
    """Ranks of other hosts have lost one of this host for its silence: it need not be silent as long as
    usual to be lost.
    """

    host: str


class Start(NamedTuple):
    """Start a worker. ``slot``: of the host. ``place``: where it is expected to be."""

    worker: int
    host: str
    slot: int
    place: Six


class End(NamedTuple):
    """End workers: SIGTERM, and SIGKILL some time later; ``kill``: SIGKILL at once."""

    workers: tuple[int, ...]
    kill: bool = False


class Tell(NamedTuple):
    """Answer report ``number`` of a worker."""

    worker: int
    number: int
    answer: Answer


class Notify(NamedTuple):
    """Tell rank 0 that the hosts have changed (``HostUpdateResult``)."""

    kind: int


class Spoil(NamedTuple):
    """World ``round`` cannot be formed, None: no world at all. Who waits for it shall wait no longer."""

    round: int | None
    why: str
    rank: int
    host: str


class Log(NamedTuple):
    """Something happened that people want to know; ``text`` is a sentence, ``fields`` say it for programs."""

    event: str
    text: str
    fields: Mapping[str, Any] = MappingProxyType({})


class Say(NamedTuple):
    """Tell the user; unless ``loud`` only if he wants to know more."""

    text: str
    loud: bool = True


class Finish(NamedTuple):
    """End everything with this signal, and do not start or reach anything any more."""

    signum: int


class Kill(NamedTuple):
    """Kill everything that still runs."""


class Widen(NamedTuple):
    """Serve the store at all addresses: there are hosts besides this machine."""


class AnnounceEnd(NamedTuple):
    """Let these workers know that the signal that comes to them is ours."""

    workers: tuple[int, ...]


class Forget(NamedTuple):
    """A worker has ended: nobody reads any more what was said."""

    worker: int


class WorkerEnd(NamedTuple):
    """End of a member of the last world. ``exit_code``: negative for a signal, None: its host was lost."""

    worker: int
    rank: int
    host: str
    slot: int
    exit_code: int | None


class Over(NamedTuple):
    """Nothing of the job runs any more.

    Attributes:
        error: why the job has failed, if not because of a worker; empty: it has not.
        failed: the member of the last world that failed first, if the job has failed by it.
        ranks: workers of the last world, by rank.
    """

    error: str = ""
    failed: WorkerEnd | None = None
    ranks: tuple[int, ...] = ()


Action = (
    Reach
    | Drop
    | Doubt
    | Start
    | End
    | Tell
    | Notify
    | Spoil
    | Log
    | Say
    | Finish
    | Kill
    | Widen
    | AnnounceEnd
    | Forget
    | Over
)
