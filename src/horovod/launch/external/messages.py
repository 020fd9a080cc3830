"""Messages that the wrapper of a rank (`rank_wrapper`) and the launching process (`fleet`) leave for each
other in the store. Every rank of the job may write there, so what is read is checked first. Rank R:

    job/place/R    what to run and where, from the launching process, once all have arrived
    arrived/R      that R is there, and on which host
    beat/R         a number that grows each second while R is there
    heard/R        that R has learned that the job is over, and is ending its command
    ended/R        how its command ended
    call/, result/ what is called and what comes of it, for `horovod.run`, in parts
    signal/N/      a scope that is aborted when the N-th signal comes that ranks may have a handler for
    input/N        the N-th piece of what rank 0 reads on its standard input, the last one empty
    took/N         that rank 0 has it
    passed/R/N     what has become of such a signal at R
    over           why the job ends before its time, and by which signal; then the scope job/ is aborted
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

from horovod.bootstrap.records import Malformed, record, seconds, text, whole
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.table import Cause
from horovod.errors import LaunchError
from horovod.launch.contracts.events import PassedOn
from horovod.launch.placement.hosts import Slot, host_name

__all__ = [
    "ARRIVED",
    "RankArrival",
    "BEAT",
    "CALL",
    "ENDED",
    "HEARD",
    "INPUT",
    "JOB",
    "KILL",
    "OVER",
    "PASSED",
    "PLACE",
    "RankInstructions",
    "RESULT",
    "RankEnd",
    "SIGNAL",
    "TOOK",
    "fetch",
    "leave",
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
CALL = "call/"
RESULT = "result/"

_PART_BYTES = 16 << 20
_ANSWER_S = 60.0

_MOST_RANK = (1 << 31) - 1
_MOST_SECONDS = 1e9
_MOST_SIGNAL = 64

_Host = Annotated[str, host_name]
_Rank = Annotated[int, whole(0, _MOST_RANK)]
_Size = Annotated[int, whole(1, _MOST_RANK)]
_Silence = Annotated[float, seconds(_MOST_SECONDS, positive=True)]
_Patience = Annotated[float, seconds(_MOST_SECONDS)]
_Parts = Annotated[int, whole(0, 1 << 12)]
_Path = Annotated[str, text(fits=lambda path: "\0" not in path, what="is no path")]
_ExitCode = Annotated[int, whole(-127, 255)]


@dataclass(frozen=True)
class RankArrival:
    """Arrival of a rank. ``size``: of the world, as the rank was told."""

    host: _Host
    size: _Size


@dataclass(frozen=True)
class RankInstructions:
    """Instructions for one rank: its slot, and how to run its command there."""

    slot: Slot
    silence_s: _Silence
    patience_s: _Patience
    call_parts: _Parts
    timestamps: bool
    shown: bool
    directory: _Path
    call_is_input: bool = False
    feeds: bool = False

    def __post_init__(self) -> None:
        host_name(self.slot.hostname)
        for name in ("", "local_", "cross_"):
            rank, size = getattr(self.slot, f"{name}rank"), getattr(self.slot, f"{name}size")
            if not 0 <= rank < size <= _MOST_RANK:
                raise Malformed("is out of range", ("slot", f"{name}rank"))


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank. ``refused``: its command could not be run, and ``text`` says why; ``told``: it had
    learned before that the job is over; ``ended_by_launcher``: a signal to what runs the rank ended it;
    ``result_parts``: of what its function returned.
    """

    exit_code: _ExitCode
    text: str = ""
    because: _Rank | None = None
    tail: tuple[str, ...] = ()
    refused: bool = False
    told: bool = False
    ended_by_launcher: bool = False
    result_parts: _Parts = 0


T = TypeVar("T", RankArrival, RankInstructions, RankEnd)


def said(value: RankArrival | RankInstructions | RankEnd) -> dict[str, Any]:
    """As the store carries it."""
    return asdict(value)


def understood(kind: type[T], value: object, who: str) -> T:
    """Decode what ``who`` has said in the store.

    Raises:
        LaunchError: it is no such thing.
    """
    try:
        made: T = record(kind, strict=True)(value)
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


def leave(client: StoreClient, prefix: str, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Put the bytes of ``pieces`` below ``prefix``; how many parts there are. A part is a value of its own,
    so that one message stays small; all of them together count towards what a store may hold.

    Raises:
        RendezvousError: the store is gone, or full.
    """
    count = 0
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            part, left = left[:_PART_BYTES], left[_PART_BYTES:]
            client.set(f"{prefix}{count}", base64.b64encode(part).decode("ascii"))
            count += 1
    return count


def fetch(client: StoreClient, prefix: str, count: int, who: str) -> bytearray:
    """Fetch the bytes that ``who`` has left below ``prefix`` in ``count`` parts.

    Raises:
        LaunchError: this is nothing that ``leave`` has left.
        RendezvousError: the store is gone, or a part is missing.
    """
    data = bytearray()
    for number in range(count):
        part = client.get(f"{prefix}{number}", _ANSWER_S)
        try:
            if not isinstance(part, str):
                raise ValueError("no text")
            data += base64.b64decode(part, validate=True)
        except ValueError as error:
            raise LaunchError(
                f"Part {number} of what {who} left in the store makes no sense: {error}."
            ) from error
    return data
