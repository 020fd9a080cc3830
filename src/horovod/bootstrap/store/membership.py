"""Membership of a process in the world of an elastic job: the process reports to the driver, which answers
with its place.

Both go through the store. The n-th report of worker w is the value of ``elastic/said/w/n``, the answer that
of ``elastic/told/w/n``. So the driver hears of reports in the store's process, and a worker waits as for any
key: nothing else listens, and nothing is unpickled. Reports are counted in the store: a second program in the
same slot (``sh -c "train && evaluate"``) goes on with the next number. Only one process at a time may be
worker w: ``elastic/owner/w`` says which; a child of it is none.

    report  {"ready": false}                        the process has called ``init()`` for the first time
            {"ready": true, "round": r, ...}        it has left world r (0: it was in none) and wants to be in
                                                    the next one; see ``Report``
    answer  {"assigned": {"round": r, "place": [6], "news": n, "in_step": b}}
                                                    form world r, at this place; see ``Assigned``
            {"expected": {"place": [6], "round": r}}
                                                    a world is at work: prepare for about this place, then be
                                                    ready
            {"dismissed": {"why": why}}             the job needs this process no more

News of changed hosts are ``elastic/news/n``, n = 0, 1, …: {"at": UNIX seconds, "kind": flags}.

A worker that is about to be taken away says so: ``elastic/leaving/w`` is {"why": text, "host": whether all of
its host goes}. A worker that the driver ends by a signal has ``elastic/ending/w``, so that it does not take
the signal for somebody else's. Rank 0 says what a reset has cost: ``elastic/resumed/w`` is {"round": r,
"took": {phase: seconds}}.

The driver may be restarted: the store of the next one is at the same address and empty. Who is in the middle
of a conversation begins it anew there, so no report is lost, and none counts twice.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from horovod.bootstrap.place.store_address import read_store
from horovod.bootstrap.records import Malformed, cut, listed, mapped, record, seconds, whole
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.rounds import has_ended, process_identity
from horovod.errors import ConfigError, HorovodInternalError, RendezvousError, StoreTimeout

__all__ = [
    "COUNT",
    "ENDING",
    "LEAVING",
    "NEWS",
    "RESUMED",
    "SAID",
    "TOLD",
    "WAIT_VARIABLE",
    "WORKER_VARIABLE",
    "Answer",
    "Assigned",
    "Dismissed",
    "Expected",
    "HostUpdateResult",
    "Leaving",
    "Membership",
    "News",
    "Report",
    "Resumed",
    "Six",
    "from_json",
    "next_news",
    "place_variables",
    "to_json",
    "told_key",
]

_log = logging.getLogger("horovod")

SAID = "elastic/said/"
TOLD = "elastic/told/"
NEWS = "elastic/news/"
LEAVING = "elastic/leaving/"
ENDING = "elastic/ending/"
OWNER = "elastic/owner/"
COUNT = "elastic/count/"
RESUMED = "elastic/resumed/"
WORKER_VARIABLE = "HOROVOD_ELASTIC_WORKER"
"""The number of a worker: each process of a job has another one, and none is used again."""

WAIT_VARIABLE = "HOROVOD_ELASTIC_DRIVER_WAIT"
"""Seconds that a worker waits for another driver when its own is gone; not set: it does not wait."""

_MOST_TEXT = 4096
_MOST_NUMBER = (1 << 31) - 1
_ASK_AGAIN_S = 3600.0

Six = tuple[int, int, int, int, int, int]
"""rank, size, local rank, local size, cross rank, cross size."""

_number = whole(0, _MOST_NUMBER)


def _six(value: object) -> Six:
    rank, size, local_rank, local_size, cross_rank, cross_size = listed(_number)(value)
    return rank, size, local_rank, local_size, cross_rank, cross_size


_Number = Annotated[int, _number]
_Time = Annotated[int, whole(0, 1 << 62)]
_Place = Annotated[Six, _six]
_Text = Annotated[str, cut(_MOST_TEXT)]
_Phases = Annotated[Mapping[str, float], mapped(cut(64), seconds(_MOST_NUMBER), 64)]


class HostUpdateResult(enum.IntFlag):
    """Kinds of change to the hosts; changes add up by ``|``."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Report(NamedTuple):
    """Report of a worker to the driver.

    Attributes:
        ready: else it has just arrived, and has nothing to give a world yet.
        round: the world that it was given last; 0: none.
        formed: it was in that world.
        failed: that world has failed, or could not be formed; else it was left for a change of the hosts.
        why: the failure, in a sentence.
        because: the rank of that world that the failure is about, if it is about one.
        synced: its state is that of the training, and not what its script began with.
    """

    ready: bool
    round: _Number = 0
    formed: bool = False
    failed: bool = False
    why: _Text = ""
    because: _Number | None = None
    synced: bool = False


class Leaving(NamedTuple):
    """A worker will be taken away soon: it alone, or with all of its host."""

    why: _Text
    host: bool


class Resumed(NamedTuple):
    """Rank 0 trains again. ``took``: the seconds of each phase since it left the last world, in order."""

    round: _Number
    took: _Phases


class Assigned(NamedTuple):
    """Form world ``round`` at this place.

    Attributes:
        news: the number of the next news.
        in_step: all its members have left the world before for a change of the hosts, so that their states
            are equal: else one of them is new, has failed there, or was never in it. Equal for all members.
    """

    round: _Number
    place: _Place
    news: _Number = 0
    in_step: bool = False


class Expected(NamedTuple):
    """World ``round`` is at work; this place is likely in the next one."""

    place: _Place
    round: _Number = 0


class Dismissed(NamedTuple):
    """The process is to end, without an error. ``why``: in a sentence."""

    why: _Text


Answer = Assigned | Expected | Dismissed


class News(NamedTuple):
    """The hosts have changed: when, in UNIX seconds, and how (``HostUpdateResult``)."""

    at: _Time
    kind: _Number


class _Told(NamedTuple):
    assigned: Assigned | None = None
    expected: Expected | None = None
    dismissed: Dismissed | None = None


M = TypeVar("M", Report, Leaving, Resumed, News)


def to_json(message: Report | Leaving | Resumed | Answer) -> dict[str, Any]:
    """Return what the store carries: the fields, a long text cut."""
    said = {
        name: value[:_MOST_TEXT] if isinstance(value, str) else value
        for name, value in message._asdict().items()
    }
    return {type(message).__name__.lower(): said} if isinstance(message, Answer) else said


def from_json(kind: type[M], value: object) -> M:
    """Read what `to_json` gives. Raises ``ValueError``."""
    return record(kind)(value)


def told_key(worker: int, number: int) -> str:
    """Key under which the store has the answer to a worker's report ``number``."""
    return f"{TOLD}{worker}/{number}"


def place_variables(place: Six) -> dict[str, str]:
    """The six variables that say a place."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return {f"HOROVOD_{name}": str(number) for name, number in zip(names, place, strict=True)}


class Membership:
    """A worker's side.

    Args:
        environ: says who this worker is, and where the store is.
        key: of the job.
        job: its name.
        timeout_s: for reaching the store.
    """

    def __init__(self, environ: Mapping[str, str], key: bytes, job: str, timeout_s: float) -> None:
        self.worker = int(environ[WORKER_VARIABLE])
        self.host = environ.get("HOROVOD_HOSTNAME", "")
        self._store = read_store(environ)
        self._key = key
        self._job = job
        self._timeout_s = timeout_s
        self._wait_s = _seconds(environ.get(WAIT_VARIABLE, ""))
        self._owns = False

    def report(self, report: Report) -> Answer:
        """Tell the driver, and wait for what it says; as long as it lives, or another one may come.

        Raises:
            RendezvousError: the driver is gone, or cannot be reached; or another process is this worker.
        """
        while True:
            with self.connected() as store:
                try:
                    return self._reported(store, report)
                except RendezvousError as error:
                    if not (self._wait_s and error.recoverable):
                        raise
                    self._owns = False  # the next store knows of nobody
                    _log.warning(
                        "%s waits up to %g s for another driver (horovodrun --resume): %s",
                        self._who, self._wait_s, error,
                    )  # fmt: skip

    def _reported(self, store: StoreClient, report: Report) -> Answer:
        if not self._owns:
            self._own(store)
        number = store.add(f"{COUNT}{self.worker}") - 1
        store.set(f"{SAID}{self.worker}/{number}", to_json(report))
        return _answer(_await(store, told_key(self.worker, number)))

    def _own(self, store: StoreClient) -> None:
        """Be the process of this worker, if the one before has ended."""
        key, me = f"{OWNER}{self.worker}", {"host": self.host, **process_identity()}
        swapped, other = store.compare_and_set(key, None, me)
        while not swapped:
            if other != me and not has_ended(other, me):
                error = RendezvousError(
                    f"Two processes say that they are worker {self.worker} of this elastic job: process "
                    f"{other['pid']} on host {other['host']} and process {me['pid']} on host {self.host}. "
                    "Was one of them started by the other, with its environment? Unset HOROVOD_ELASTIC and "
                    f"{WORKER_VARIABLE} there.",
                    host=self.host,
                )
                error.recoverable = False
                raise error
            swapped, other = store.compare_and_set(key, other, me)
        self._owns = True

    def leave(self, leaving: Leaving) -> bool:
        """Tell the driver that this worker will be taken away; whether the driver itself does not end it.

        Raises:
            RendezvousError: the driver is gone, or cannot be reached.
        """
        with self.connected() as store:
            try:
                store.get(f"{ENDING}{self.worker}", 0.0)
            except StoreTimeout:
                store.set(f"{LEAVING}{self.worker}", to_json(leaving))
                return True
            return False

    def resumed(self, resumed: Resumed) -> None:
        """Tell the driver what the reset has cost. Raises ``RendezvousError`` if it is gone."""
        with self.connected() as store:
            store.set(f"{RESUMED}{self.worker}", to_json(resumed))

    def connected(self) -> StoreClient:
        """A connection to the store, that of the next driver if need be; a context manager.

        Raises:
            RendezvousError: there is none in time.
        """
        timeout_s = max(self._timeout_s, self._wait_s)
        return StoreClient(self._store, self._key, timeout_s, self._who, job=self._job)

    @property
    def waits(self) -> bool:
        """True if another driver may come when this one is gone."""
        return self._wait_s > 0.0

    @property
    def _who(self) -> str:
        return f"worker {self.worker} on host {self.host}"


def next_news(store: StoreClient, number: int) -> News:
    """Wait for news ``number``.

    Raises:
        HorovodInternalError: the store is gone, or sent nonsense.
    """
    try:
        return from_json(News, _await(store, f"{NEWS}{number}"))
    except ValueError as error:
        raise HorovodInternalError(f"The driver sent news that make no sense: {error}.") from error


def _await(store: StoreClient, key: str) -> Any:
    while True:
        try:
            return store.get(key, _ASK_AGAIN_S)
        except StoreTimeout:
            continue


def _answer(value: object) -> Answer:
    try:
        told = record(_Told)(value)
        answer = told.assigned or told.expected or told.dismissed
        if answer is None:
            raise Malformed("it says nothing")
        return answer
    except ValueError as error:
        raise RendezvousError(f"The driver's answer makes no sense: {error}.") from error


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text or 0.0))
    except ValueError:
        message = f"{WAIT_VARIABLE}={text!r} is no number of seconds."
        raise ConfigError(message, variable=WAIT_VARIABLE) from None
