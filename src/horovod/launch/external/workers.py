"""Ranks that another launcher's program starts, as events for the supervisor.

The program runs as a child and is not believed: a job has succeeded when every rank has reported that its
command did (see `rank_wrapper`). Open MPI 5's ``mpirun``, for one, ends with status 0 when a host dies, and
leaves the ranks of the others running.
"""

from __future__ import annotations

import math
import os
import queue
import select
import selectors
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from horovod.bootstrap.proc import every_process
from horovod.bootstrap.starter import Word, line_of
from horovod.bootstrap.store import StoreClient, StoreServer
from horovod.bootstrap.table import Cause
from horovod.errors import LaunchError, RendezvousError, StoreTimeout, WorkerFailed
from horovod.launch.external import messages
from horovod.launch.external.messages import Arrival, Place, Report, said, understood
from horovod.launch.external.order import StartLine
from horovod.launch.external.store_bytes import CALL, RESULT, fetch, leave
from horovod.launch.job import Job
from horovod.launch.launchers.contract import (
    CommandNotStarted,
    Event,
    Exited,
    Failed,
    Finished,
    Placed,
    Said,
    Started,
)
from horovod.launch.output.console import Console
from horovod.launch.placement.hosts import HostSlots, Slot, named, place_ranks
from horovod.launch.supervision.signals import signal_name
from horovod.launch.supervision.supervisor import describe_exit
from horovod.runtime.ending import harmless

__all__ = ["ExternalWorkers", "LauncherFailed", "Limits"]

_GRACE_S = 5.0  # between the first signal to a rank and SIGKILL
_HEAR_S = 1.0  # how long a rank may take to learn that the job is over
_LEAVE_S = 10.0  # how long the program may take to end when all ranks have
_CLIENT_S = 10.0
_FOREVER_S = 3600.0
_ASK_S = 0.02  # between two looks for ranks that have learned that the job is over
_LOOK_S = 1.0  # between two looks for ranks that are silent


class LauncherFailed(LaunchError):
    """The other launcher failed; ``exit_code`` is its exit status."""

    def __init__(self, message: str = "", *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Limits:
    """How long ranks may take to start, to give a sign of life, and to end by themselves when one has
    failed.
    """

    start_s: float
    silence_s: float
    patience_s: float


@dataclass(frozen=True)
class _Arrived:
    """All ranks are there; where, by rank."""

    hosts: Sequence[str]


@dataclass(frozen=True)
class _Missing:
    """Not all ranks came in time."""

    ranks: Sequence[int]
    waited_s: float


@dataclass(frozen=True)
class _Ended:
    rank: int
    report: object


@dataclass(frozen=True)
class _Nonsense:
    """A rank has said what makes no sense."""

    error: LaunchError


@dataclass(frozen=True)
class _End:
    """The supervisor wants the ranks to end."""

    signum: int


@dataclass(frozen=True)
class _Kill:
    """It does not want to wait for that any longer."""


_News = _Arrived | _Missing | _Ended | _Nonsense | _End | _Kill


class ExternalWorkers:
    """The ranks of a job behind `line`, the command line of another `launcher`, which is started at once.

    A thread of its own watches the program and what its ranks leave in the store; two more wait for the
    store.

    Args:
        hosts: where the ranks are wanted; empty: the launcher decides.

    Raises:
        LaunchError: the program cannot be started.
    """

    def __init__(
        self,
        job: Job,
        hosts: Sequence[HostSlots],
        launcher: str,
        line: StartLine,
        store: StoreServer,
        key: bytes,
        limits: Limits,
        console: Console,
    ) -> None:
        self.results: dict[int, bytearray] = {}
        self._job = job
        self._wanted = hosts
        self._launcher = launcher
        self._connect: Callable[[], StoreClient] = lambda: StoreClient(
            store.address, key, _CLIENT_S, "the launching process", job=store.job
        )
        self._store = store
        self._limits = limits
        self._console = console
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._events_bell = _bell()
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._news_bell = _bell()
        self._client = self._connect()
        self._beats: dict[int, tuple[object, float]] = {}  # of each rank, and when it was new
        self._look_at = 0.0
        self._slots: tuple[Slot, ...] = ()
        self._reports: dict[int, Report] = {}
        self._failed = False
        self._over = False
        self._killed = False
        self._status: int | None = None  # of the program
        try:
            self._program = subprocess.Popen(
                line.words,
                env=line.environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches us only, who decide
            )
        except OSError as error:
            self._client.close()
            raise LaunchError(f"{line.words[0]} cannot be started: {error.strerror}") from error
        for wait in (self._await_arrivals, self._await_reports):
            threading.Thread(target=wait, daemon=True).start()
        self._thread = threading.Thread(target=self._run, name="external launcher", daemon=True)
        self._thread.start()

    # For the supervisor.

    def fileno(self) -> int:
        return self._events_bell

    def events(self) -> Sequence[Event]:
        _quiet(self._events_bell)
        found: list[Event] = []
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, BaseException):
                raise event
            found.append(event)
        return found

    def end(self, signum: int) -> None:
        self._tell(_End(signum))

    def kill(self) -> None:
        self._tell(_Kill())

    def close(self) -> None:
        self.end(signal.SIGTERM)
        self._thread.join()
        os.close(self._events_bell)

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of a rank that has reported its end."""
        return self._reports[rank].tail if rank in self._reports else ()

    # The thread, while the job runs.

    def _run(self) -> None:
        last: Event | BaseException
        try:
            self._client.watch(messages.JOB, -1)
            self._watch()
            missing = self._missing()
            self._settle()
            self._end_program()
            last = Finished((), self._why_failed(missing))
        except BaseException as error:
            last = error
        finally:
            if self._program.poll() is None:
                self._program.kill()
                self._program.wait()
            _kill_session(self._program.pid)
            self._client.close()
        self._emit(last)

    def _watch(self) -> None:
        """Until the program has ended, all ranks have, or they shall."""
        ended = os.pidfd_open(self._program.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for source in (ended, self._news_bell, self._client.fileno()):
                    selector.register(source, selectors.EVENT_READ)
                while not self._over and self._missing():
                    ready = {key.fd for key, _ in selector.select(_LOOK_S if self._slots else None)}
                    if self._client.fileno() in ready:
                        self._client.pump()
                    self._take_news()
                    if ended in ready:
                        self._status = self._program.wait()
                    if ended in ready or self._client.aborted:
                        self._take_late_news()
                        return
                    if self._slots and time.monotonic() >= self._look_at:
                        self._look_for_silent_ranks()
        finally:
            os.close(ended)

    def _take_news(self) -> None:
        _quiet(self._news_bell)
        while not self._news.empty():
            match self._news.get_nowait():
                case _Arrived(hosts):
                    self._arrive(hosts)
                case _Missing(ranks, waited_s):
                    self._fail(
                        LaunchError(
                            f"{self._launcher} has not started all ranks within {waited_s:g} s: "
                            f"{_listed(ranks)} did not come. Look at its messages; --start-timeout gives "
                            "more time."
                        )
                    )
                case _Nonsense(error):
                    self._fail(error)
                case _Ended(rank, report):
                    self._take_report(rank, report)
                case _End(signum):
                    self._end_ranks(signum)
                    if not self._slots and not self._failed:  # no rank hears us yet
                        _signal_group(self._program, signum)
                case _Kill():
                    self._killed = True

    def _take_report(self, rank: int, value: object) -> None:
        who = f"rank {rank} on host {self._slots[rank].hostname}" if self._slots else f"rank {rank}"
        try:
            if not self._slots:
                raise LaunchError(f"{who} told how it ended before it was told to start.")
            report = understood(Report, value, who)
            if report.result_parts:
                self.results[rank] = fetch(self._client, f"{RESULT}{rank}/", report.result_parts, who)
        except LaunchError as error:
            self._reports[rank] = Report(1)  # nothing more is expected of it
            self._fail(error)
            return
        self._reports[rank] = report
        text = harmless(report.text, "\n")
        if report.refused:
            self._fail(CommandNotStarted(text, exit_code=report.exit_code or 126))
            return
        self._emit(Said(rank, line_of(Word(in_world=True, text=text, because=report.because))))
        self._emit(Exited(rank, report.exit_code, told=report.told))

    def _take_late_news(self) -> None:
        """The last reports may be on their way when the program has ended already."""
        until = time.monotonic() + _HEAR_S / 2
        while not self._over and self._missing() and time.monotonic() < until:
            self._wait_for_news(until - time.monotonic())
            self._take_news()

    def _wait_for_news(self, at_most_s: float) -> None:
        poller = select.poll()
        poller.register(self._news_bell, select.POLLIN)
        poller.poll(max(0, math.ceil(at_most_s * 1000)))

    def _look_for_silent_ranks(self) -> None:
        """A host that is off or cut off closes no connection."""
        book = self._client.collect(messages.BEAT, 0, 0.0)
        now = time.monotonic()
        self._look_at = now + _LOOK_S
        for rank in self._missing():
            number = book.get(str(rank))
            if rank not in self._beats or self._beats[rank][0] != number:
                self._beats[rank] = number, now
        silent = [rank for rank in self._missing() if now > self._beats[rank][1] + self._limits.silence_s]
        if silent:
            self._fail(
                WorkerFailed(
                    f"nothing has been heard of {_listed(silent)} on {self._where(silent)} for "
                    f"{self._limits.silence_s:g} s: the host is off, cut off or stopped.",
                    rank=silent[0],
                    host=self._slots[silent[0]].hostname,
                    exit_code=1,
                )
            )

    def _arrive(self, hosts: Sequence[str]) -> None:
        self._store.narrow()
        self._slots = place_ranks(hosts)
        self._emit(Placed(self._slots))
        found = Counter(hosts)
        self._console.narrate(
            f"{self._launcher} placed ranks at {named(HostSlots(*each) for each in found.items())}"
        )
        wanted = sorted(host.slots for host in self._wanted)
        if wanted and sorted(found.values()) != wanted:
            self._fail(
                LaunchError(
                    f"{self._launcher} was asked for ranks at {named(self._wanted)}, and started them at "
                    f"{named(HostSlots(*each) for each in found.items())}. Look for settings of it that name "
                    "other hosts."
                )
            )
            return
        directory = self._job.output_directory
        call_parts = leave(self._client, CALL, self._job.call)
        for slot in self._slots:
            place = Place(
                slot,
                silence_s=self._limits.silence_s,
                patience_s=self._limits.patience_s,
                call_parts=call_parts,
                timestamps=self._job.timestamps,
                directory=str(directory.absolute()) if directory is not None else "",
            )
            self._client.set(f"{messages.PLACE}{slot.rank}", said(place))
            self._emit(Started(slot.rank, 0))
            # What it says itself comes with its report: until then it may be in a world.
            self._emit(Said(slot.rank, line_of(Word(in_world=True))))

    def _fail(self, error: LaunchError) -> None:
        if not self._failed:
            self._failed = True
            self._emit(Failed(error))

    # The thread, at the end.

    def _end_ranks(self, signum: int = signal.SIGTERM) -> None:
        if not self._over:
            self._over = True
            self._client.set(messages.OVER, {"signum": int(signum)})
            self._client.abort(messages.JOB, Cause("the job is over"))

    def _settle(self) -> None:
        """Wait for ranks that are still there to end, when not all have ended by themselves."""
        if not self._missing():
            return
        self._end_ranks()
        began = time.monotonic()
        while self._missing() and not self._killed:
            now = time.monotonic()
            heard = set(messages.ranks_in(self._client.collect(messages.HEARD, 0, 0.0), self._job.processes))
            if now > began + _HEAR_S and not heard - set(self._reports):
                break
            if now > began + _GRACE_S + 2 * _HEAR_S:
                break
            self._wait_for_news(_ASK_S)
            self._take_news()

    def _end_program(self) -> None:
        patience_s = _LEAVE_S if not self._missing() else _GRACE_S
        for signum in (0, signal.SIGTERM, signal.SIGKILL):
            if signum:
                self._console.tell(
                    f"{self._launcher} does not end by itself: sending it {signal_name(signum)}"
                )
                _signal_group(self._program, signum)
            try:
                status = self._program.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
            self._status = status if not signum else self._status
            return

    def _why_failed(self, missing_before: Sequence[int]) -> LaunchError | None:
        """Why the job has failed, when no rank has said so; `missing_before` its ranks were ended."""
        status = self._status or 0
        end = "had to be ended" if self._status is None else describe_exit(self._status)
        if not missing_before:
            return (
                None
                if not status
                else LauncherFailed(
                    f"every rank reported success, but {self._launcher} {end}: see its messages above.",
                    exit_code=status,
                )
            )
        if not self._slots:
            return LauncherFailed(
                f"{self._launcher} {end} before all ranks had started: see its messages above.",
                exit_code=status or 1,
            )
        gone = self._missing() or missing_before
        lost = f"{_listed(gone)} on {self._where(gone)} did not report "
        lost += f"{'their' if len(gone) > 1 else 'its'} end"
        others = len(missing_before) - len(gone)
        because = f"; {_count(others)} ended because of it" if others > 0 else ""
        first = self._first_lost() if self._first_lost() in gone else gone[0]
        of_many = (
            f" The first that was lost is rank {first}." if len(gone) > 1 and self._client.aborted else ""
        )
        return WorkerFailed(
            f"{lost} ({self._launcher} {end}){because}.{of_many} "
            "The host may have died, or the processes were killed.",
            rank=first,
            host=self._slots[first].hostname,
            exit_code=status or 1,
        )

    def _first_lost(self) -> int:
        """The rank whose connection ended first, -1 if none did before the job was over."""
        cause = self._client.aborted.get(messages.JOB)
        return cause.missing[0] if cause is not None and cause.missing else -1

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._job.processes) if rank not in self._reports]

    def _where(self, ranks: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys(self._slots[rank].hostname for rank in ranks))

    def _emit(self, event: Event | BaseException) -> None:
        self._events.put(event)
        os.eventfd_write(self._events_bell, 1)

    # Threads that wait for the store, and put news into the queue.

    def _await_arrivals(self) -> None:
        processes = self._job.processes
        try:
            with self._connect() as client:
                book = client.collect(messages.ARRIVED, processes, self._limits.start_s)
        except StoreTimeout as error:
            came = {key.removeprefix(messages.ARRIVED) for key in error.keys}
            self._tell(_Missing(sorted(int(key) for key in came if key.isdecimal()), error.waited_s))
            return
        except RendezvousError:
            return  # the job has ended, and the store with it
        try:
            arrivals = [understood(Arrival, book.get(str(rank)), f"rank {rank}") for rank in range(processes)]
        except LaunchError as error:
            self._tell(_Nonsense(error))
            return
        self._tell(_Arrived([each.host for each in arrivals]))

    def _await_reports(self) -> None:
        told: set[int] = set()
        known = 0
        try:
            with self._connect() as client:
                while len(told) < self._job.processes:
                    try:
                        book = client.collect(messages.ENDED, known + 1, _FOREVER_S)
                    except StoreTimeout:
                        continue
                    known = len(book)
                    for rank in messages.ranks_in(book, self._job.processes):
                        if rank not in told:
                            self._tell(_Ended(rank, book[str(rank)]))
                            told.add(rank)
        except RendezvousError:
            return

    def _tell(self, news: _News) -> None:
        self._news.put(news)
        os.eventfd_write(self._news_bell, 1)


def _bell() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def _quiet(bell: int) -> None:
    try:
        os.eventfd_read(bell)
    except BlockingIOError:
        pass  # nothing new


def _signal_group(child: subprocess.Popen[bytes], signum: int) -> None:
    try:
        os.killpg(child.pid, signum)
    except ProcessLookupError:
        pass  # it has ended


def _kill_session(leader: int) -> None:
    """End what the other launcher has left behind, such as ssh clients of hosts that are silent."""
    for pid, stat in every_process():
        if stat.session == leader:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has ended


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{', ...' if len(ranks) > 8 else ''}"


def _count(ranks: int) -> str:
    return "the other rank was" if ranks == 1 else f"{ranks} other ranks were"
