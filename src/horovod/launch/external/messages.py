"""Messages that the wrapper of a rank (`rank_wrapper`) and the launching process (`workers`) leave for each
other in the store. Every rank of the job may write there, so what is read is checked first. Rank R:

    job/place/R    what to run and where, from the launching process, once all have arrived
    arrived/R      that R is there, and on which host
    beat/R         a number that grows each second while R is there
    heard/R        that R has learned that the job is over, and is ending its command
    ended/R        how its command ended
    call/, result/ what is called and what comes of it, for `horovod.run` (`store_bytes`)
    signal/N/      a scope that is aborted when the N-th signal comes that ranks may have a handler for
    input/N        the N-th piece of what rank 0 reads on its standard input, the last one empty
    took/N         that rank 0 has it
    passed/R/N     what has become of such a signal at R
    over           why the job ends before its time, and by which signal; then the scope job/ is aborted
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from horovod.bootstrap.table import Cause
from horovod.errors import LaunchError
from horovod.launch.launchers.contract import PassedOn
from horovod.launch.placement.hosts import HostSlots, Slot

__all__ = [
    "ARRIVED",
    "BEAT",
    "ENDED",
    "HEARD",
    "INPUT",
    "JOB",
    "KILL",
    "OVER",
    "PASSED",
    "PLACE",
    "SIGNAL",
    "TOOK",
    "Arrival",
    "Place",
    "Report",
    "passed_on",
    "ranks_in",
    "said",
    "signal_cause",
    "signal_in",
    "signal_of",
    "understood",
]

JOB = "job/"
PLACE = "job/place/"
ARRIVED = "arrived/"
BEAT = "beat/"
HEARD = "heard/"
ENDED = "ended/"
SIGNAL = "signal/"
KILL = "kill/"
PASSED = "passed/"
INPUT = "input/"
TOOK = "took/"
OVER = "over"

_MOST_PARTS = 1 << 12
_MOST_RANKS = 1 << 31
_MOST_SECONDS = 1e9
_MOST_SIGNAL = 64


@dataclass(frozen=True)
class Arrival:
    """Arrival of a rank. ``size``: of the world, as the rank was told."""

    host: str
    size: int

    def __post_init__(self) -> None:
        HostSlots(self.host, 1)  # refuses what is no name
        _check(0 < self.size < _MOST_RANKS, "size")


@dataclass(frozen=True)
class Place:
    """Instructions for one rank: its slot, and how to run its command there."""

    slot: Slot
    silence_s: float
    patience_s: float
    call_parts: int
    timestamps: bool
    shown: bool
    directory: str
    call_is_input: bool = False
    feeds: bool = False

    def __post_init__(self) -> None:
        HostSlots(self.slot.hostname, 1)
        for name in ("", "local_", "cross_"):
            rank, size = getattr(self.slot, f"{name}rank"), getattr(self.slot, f"{name}size")
            _check(0 <= rank < size < _MOST_RANKS, f"{name}rank")
        _check(0.0 < self.silence_s <= _MOST_SECONDS, "silence_s")
        _check(0.0 <= self.patience_s <= _MOST_SECONDS, "patience_s")
        _check(0 <= self.call_parts <= _MOST_PARTS, "call_parts")
        _check("\0" not in self.directory, "directory")


@dataclass(frozen=True)
class Report:
    """The end of a rank. ``refused``: its command could not be run, and ``text`` says why; ``told``: it had
    learned before that the job is over; ``ended_by_launcher``: a signal to what runs the rank ended it;
    ``result_parts``: of what its function returned.
    """

    exit_code: int
    text: str = ""
    because: int | None = None
    tail: tuple[str, ...] = ()
    refused: bool = False
    told: bool = False
    ended_by_launcher: bool = False
    result_parts: int = 0

    def __post_init__(self) -> None:
        _check(-128 < self.exit_code < 256, "exit_code")
        _check(self.because is None or 0 <= self.because < _MOST_RANKS, "because")
        _check(0 <= self.result_parts <= _MOST_PARTS, "result_parts")


T = TypeVar("T", Arrival, Place, Report)


def said(value: Arrival | Place | Report) -> dict[str, Any]:
    """As the store carries it."""
    return asdict(value)


def understood(kind: type[T], value: object, who: str) -> T:
    """Decode what ``who`` has said in the store.

    Raises:
        LaunchError: it is no such thing.
    """
    try:
        made: T = _made(kind, value)
    except ValueError as error:  # a name that is none is a ConfigError, and so one of these
        raise LaunchError(
            f"What {who} told through the store makes no sense ({kind.__name__.lower()}: {error}). Do all "
            "hosts run the same version of Farandole?"
        ) from error
    return made


def ranks_in(book: Collection[str], processes: int) -> list[int]:
    """The ranks whose names are among the keys; others mean nothing."""
    return [rank for rank in range(processes) if str(rank) in book]


def signal_of(value: object) -> int:
    """The signal by which a job is over; SIGTERM where that cannot be said."""
    match value:
        case {"signum": int(signum)} if 0 < signum <= 64:
            return signum
    return signal.SIGTERM


def signal_cause(signum: int) -> Cause:
    """As the abort of a scope below `SIGNAL` carries a signal."""
    return Cause(f"signal {int(signum)}")


def signal_in(cause: Cause) -> int | None:
    """The signal; None: the scope was aborted as a rank is lost."""
    word, _, number = cause.text.partition(" ")
    if cause.missing or word != "signal" or not number.isdecimal() or not 0 < int(number) <= _MOST_SIGNAL:
        return None
    return int(number)


def passed_on(key: str, value: object, processes: int) -> PassedOn | None:
    """Parse a value below `PASSED`; None: malformed."""
    rank = key.partition("/")[0]
    match value:
        case {"signum": int(signum), "handled": bool(handled)} if 0 < signum <= _MOST_SIGNAL:
            if rank in map(str, range(processes)):
                return PassedOn(signum, *(((int(rank),), ()) if handled else ((), (int(rank),))))
    return None


def _made(kind: Any, value: object) -> Any:
    """An object of a dataclass from the mapping that ``asdict`` has made of one."""
    if not isinstance(value, Mapping):
        raise ValueError("not a mapping")
    hints = get_type_hints(kind)
    if not value.keys() <= hints.keys():
        raise ValueError("unknown fields")
    try:
        return kind(**{name: _field(hints[name], each, name) for name, each in value.items()})
    except TypeError as error:
        raise ValueError("fields are missing") from error


def _field(hint: Any, value: Any, name: str) -> Any:
    if hint is Slot:
        return _made(Slot, value)
    if get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)) and all(type(each) is str for each in value):
            return tuple(value)
    elif hint is float:
        if type(value) in (int, float) and abs(value) <= _MOST_SECONDS and not math.isnan(value):
            return float(value)
    elif type(value) in (get_args(hint) or (hint,)):  # a truth value is no number
        return value
    raise ValueError(f"{name} is of another type")


def _check(fits: bool, name: str) -> None:
    if not fits:
        raise ValueError(f"{name} is out of range")
