"""Membership of a process in the world of an elastic job: the process reports to the driver, which answers
with its place.

Both go through the store. The n-th report of worker w is the value of ``elastic/said/w/n``, the answer that
of ``elastic/told/w/n``. So the driver hears of reports in the store's process, and a worker waits as for any
key: nothing else listens, and nothing is unpickled. Reports are counted in the store: a second program in the
same slot (``sh -c "train && evaluate"``) goes on with the next number. Only one process at a time may be
worker w: ``elastic/owner/w`` says which; a child of it is none.

    report  {"what": "arrived"}                     the process has called ``init()`` for the first time
            {"what": "ready", "round": r, ...}      it has left world r (0: it was in none) and wants to be in
                                                    the next one; see ``Report``
    answer  {"round": r, "place": [6], "news": n, "in_step": b}
                                                    form world r, at this place; see ``Placed``
            {"expect": [6], "round": r}             a world is at work: prepare for about this place, then be
                                                    ready
            {"dismissed": why}                      the job needs this process no more

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
from dataclasses import dataclass
from typing import Any

from horovod.bootstrap.rounds import has_ended, process_identity
from horovod.bootstrap.store_address import read_store
from horovod.bootstrap.store_client import StoreClient
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
    "Dismissed",
    "Expected",
    "HostUpdateResult",
    "Leaving",
    "Membership",
    "News",
    "Placed",
    "Report",
    "Resumed",
    "Six",
    "next_news",
    "place_variables",
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
_MOST_NUMBER = 1 << 31
_ASK_AGAIN_S = 3600.0

Six = tuple[int, int, int, int, int, int]
"""rank, size, local rank, local size, cross rank, cross size."""


class HostUpdateResult(enum.IntFlag):
    """Kinds of change to the hosts; changes add up by ``|``."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


@dataclass(frozen=True)
class Report:
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
    round: int = 0
    formed: bool = False
    failed: bool = False
    why: str = ""
    because: int | None = None
    synced: bool = False

    def to_json(self) -> dict[str, Any]:
        if not self.ready:
            return {"what": "arrived"}
        return {
            "what": "ready",
            "round": self.round,
            "formed": self.formed,
            "failed": self.failed,
            "why": self.why[:_MOST_TEXT],
            "because": self.because,
            "synced": self.synced,
        }

    @classmethod
    def from_json(cls, value: Any) -> Report:
        """Raises ``TypeError``, ``ValueError`` or ``KeyError`` if ``value`` is not what ``to_json`` gives."""
        if value["what"] == "arrived":
            return cls(ready=False)
        if value["what"] != "ready":
            raise ValueError("an unknown report")
        because = value["because"]
        return cls(
            ready=True,
            round=_number(value["round"]),
            formed=value["formed"] is True,
            failed=value["failed"] is True,
            why=str(value["why"])[:_MOST_TEXT],
            because=None if because is None else _number(because),
            synced=value["synced"] is True,
        )


@dataclass(frozen=True)
class Leaving:
    """A worker will be taken away soon: it alone, or with all of its host."""

    why: str
    host: bool

    def to_json(self) -> dict[str, Any]:
        return {"why": self.why[:_MOST_TEXT], "host": self.host}

    @classmethod
    def from_json(cls, value: Any) -> Leaving:
        """Raises ``TypeError`` or ``KeyError`` if ``value`` is not what ``to_json`` gives."""
        return cls(str(value["why"])[:_MOST_TEXT], value["host"] is True)


@dataclass(frozen=True)
class Resumed:
    """Rank 0 trains again. ``took``: the seconds of each phase since it left the last world, in order."""

    round: int
    took: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, "took": {name: round(took_s, 6) for name, took_s in self.took.items()}}

    @classmethod
    def from_json(cls, value: Any) -> Resumed:
        """Raises ``TypeError``, ``ValueError`` or ``KeyError`` if ``value`` is not what ``to_json`` gives."""
        took = {str(name)[:64]: float(took_s) for name, took_s in [*value["took"].items()][:64]}
        if not all(0 <= took_s < _MOST_NUMBER for took_s in took.values()):
            raise ValueError("a phase of no length")
        return cls(_number(value["round"]), took)


@dataclass(frozen=True)
class Placed:
    """Form world ``round`` at this place.

    Attributes:
        news: the number of the next news.
        in_step: all its members have left the world before for a change of the hosts, so that their states
            are equal: else one of them is new, has failed there, or was never in it. Equal for all members.
    """

    round: int
    place: Six
    news: int = 0
    in_step: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "place": list(self.place),
            "news": self.news,
            "in_step": self.in_step,
        }


@dataclass(frozen=True)
class Expected:
    """World ``round`` is at work; this place is likely in the next one."""

    place: Six
    round: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"expect": list(self.place), "round": self.round}


@dataclass(frozen=True)
class Dismissed:
    """The process is to end, without an error. ``why``: in a sentence."""

    why: str

    def to_json(self) -> dict[str, Any]:
        return {"dismissed": self.why[:_MOST_TEXT]}


Answer = Placed | Expected | Dismissed


@dataclass(frozen=True)
class News:
    """The hosts have changed: when, in UNIX seconds, and how (``HostUpdateResult``)."""

    at: int
    kind: int


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
        store.set(f"{SAID}{self.worker}/{number}", report.to_json())
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
                store.set(f"{LEAVING}{self.worker}", leaving.to_json())
                return True
            return False

    def resumed(self, resumed: Resumed) -> None:
        """Tell the driver what the reset has cost. Raises ``RendezvousError`` if it is gone."""
        with self.connected() as store:
            store.set(f"{RESUMED}{self.worker}", resumed.to_json())

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
    value = _await(store, f"{NEWS}{number}")
    try:
        return News(_number(value["at"], 1 << 62), _number(value["kind"]))
    except (KeyError, TypeError, ValueError) as error:
        raise HorovodInternalError(f"The driver sent news that make no sense: {error!r}") from error


def _await(store: StoreClient, key: str) -> Any:
    while True:
        try:
            return store.get(key, _ASK_AGAIN_S)
        except StoreTimeout:
            continue


def _answer(value: Any) -> Answer:
    try:
        if "dismissed" in value:
            return Dismissed(str(value["dismissed"]))
        if "expect" in value:
            return Expected(_six(value["expect"]), _number(value["round"]))
        return Placed(
            _number(value["round"]), _six(value["place"]), _number(value["news"]), value["in_step"] is True
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RendezvousError(f"The driver's answer makes no sense: {error!r}") from error


def _six(value: Any) -> Six:
    rank, size, local_rank, local_size, cross_rank, cross_size = (_number(each) for each in value)
    return rank, size, local_rank, local_size, cross_rank, cross_size


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text or 0.0))
    except ValueError:
        message = f"{WAIT_VARIABLE}={text!r} is no number of seconds."
        raise ConfigError(message, variable=WAIT_VARIABLE) from None


def _number(value: Any, most: int = _MOST_NUMBER) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{value!r} is no number")
    return value
