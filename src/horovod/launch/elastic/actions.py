"""Actions that the driver of an elastic job asks for; `job` carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from horovod.bootstrap.store.membership import Answer, Six

__all__ = [
    "Action",
    "Doubt",
    "Drop",
    "End",
    "Log",
    "Notify",
    "Over",
    "Reach",
    "Spoil",
    "Start",
    "Tell",
    "WorkerEnd",
]


@dataclass(frozen=True)
class Reach:
    """Connect with a host, so that workers can be started there."""

    host: str


@dataclass(frozen=True)
class Drop:
    """Nothing more is wanted of a host; what still runs there is ended."""

    host: str


@dataclass(frozen=True)
class Doubt:
    """Ranks of other hosts have lost one of this host for its silence: it need not be silent as long as
    usual to be lost.
    """

    host: str


@dataclass(frozen=True)
class Start:
    """Start a worker. ``index``: its slot on the host. ``place``: where it is expected to be."""

    worker: int
    host: str
    index: int
    place: Six


@dataclass(frozen=True)
class End:
    """End workers: SIGTERM, and SIGKILL some time later; ``kill``: SIGKILL at once."""

    workers: tuple[int, ...]
    kill: bool = False


@dataclass(frozen=True)
class Tell:
    """Answer report ``number`` of a worker."""

    worker: int
    number: int
    answer: Answer


@dataclass(frozen=True)
class Notify:
    """Tell rank 0 that the hosts have changed (``HostUpdateResult``)."""

    kind: int


@dataclass(frozen=True)
class Spoil:
    """World ``round`` cannot be formed: who waits for it shall wait no longer."""

    round: int
    why: str
    rank: int
    host: str


@dataclass(frozen=True)
class Log:
    """Something happened that people want to know; ``text`` is a sentence, ``fields`` say it for programs."""

    event: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerEnd:
    """End of a member of the last world. ``exit_code``: negative for a signal, None: its host was lost."""

    worker: int
    rank: int
    host: str
    index: int
    exit_code: int | None


@dataclass(frozen=True)
class Over:
    """Nothing of the job runs any more.

    Attributes:
        error: why the job has failed, if not because of a worker; empty: it has not.
        failed: the member of the last world that failed first, if the job has failed by it.
        ranks: workers of the last world, by rank.
    """

    error: str = ""
    failed: WorkerEnd | None = None
    ranks: tuple[int, ...] = ()


Action = Reach | Drop | Doubt | Start | End | Tell | Notify | Spoil | Log | Over
