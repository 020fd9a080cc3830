"""A job that another launcher starts: ``horovodrun --launcher mpirun``, ``srun``, ``jsrun``.

The other launcher runs as a child and is not believed: a job has succeeded when every rank has reported that
its command did (see `rank_wrapper`). Open MPI 5's ``mpirun``, for one, ends with status 0 when a host dies,
and leaves the ranks of the others running.
"""

from __future__ import annotations

import os
import queue
import selectors
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.bootstrap.addresses import join_hosts
from horovod.bootstrap.proc import every_process
from horovod.bootstrap.starter import Word
from horovod.bootstrap.store import StoreClient, StoreServer
from horovod.bootstrap.store_address import shown
from horovod.bootstrap.table import Cause
from horovod.errors import LaunchError, RendezvousError, StoreTimeout, WorkerFailed
from horovod.launch.environment import (
    failure_patience_s,
    interface_environment,
    job_environment,
    silence_s,
    start_timeout_s,
)
from horovod.launch.external.command_line import (
    make_order,
    start_line,
    stays_here,
    store_hosts_for,
    used_hosts,
)
from horovod.launch.external.key import CarriedKey, make_key
from horovod.launch.external.messages import (
    ARRIVED,
    BEAT,
    ENDED,
    HEARD,
    JOB,
    OVER,
    PLACE,
    Arrival,
    Place,
    Report,
    ranks_in,
    said,
    understood,
)
from horovod.launch.external.order import HandOver, StartLine
from horovod.launch.external.store_bytes import CALL, RESULT, fetch, leave
from horovod.launch.job import Job, Results, describe_failure, tell_store
from horovod.launch.launchers.contract import CommandNotStarted, JobInterrupted
from horovod.launch.output.console import Console
from horovod.launch.placement.hosts import HostSlots, Slot, named, place_ranks
from horovod.launch.supervision.first_cause import End, first_cause
from horovod.launch.supervision.signals import Signals, signal_name
from horovod.launch.supervision.supervisor import describe_exit
from horovod.runtime.ending import harmless

__all__ = ["LauncherFailed", "run_handed_over"]

_GRACE_S = 5.0  # between the first signal to a rank and SIGKILL
_HEAR_S = 1.0  # how long a rank may take to learn that the job is over
_LEAVE_S = 10.0  # how long the other launcher may take to end when all ranks have
_CLIENT_S = 10.0
_FOREVER_S = 3600.0
_LOOK_S = 1.0  # between two looks for ranks that are silent


class LauncherFailed(LaunchError):
    """The other launcher failed; ``exit_code`` is its exit status."""

    def __init__(self, message: str = "", *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


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
class _Limits:
    """How long ranks may take to start, to give a sign of life, and to end by themselves when one has
    failed.
    """

    start_s: float
    silence_s: float
    patience_s: float


_News = _Arrived | _Missing | _Ended | _Nonsense


def run_handed_over(
    job: Job,
    hand_over: HandOver,
    inherited: Mapping[str, str],
    console: Console,
    results: Results | None = None,
) -> None:
    """Run `job` by the other launcher until nothing of it is left. `results` is filled as by `run_job`.

    Raises:
        ConfigError: there are fewer slots than processes, or the launcher cannot do what was asked for.
        CommandNotStarted: the command cannot be run.
        WorkerFailed: a rank ended with an error, the first one; or without saying how.
        JobInterrupted: a signal to this process ended the job.
        LauncherFailed: the other launcher failed.
        LaunchError: the job could not be started or watched.
    """
    hosts = used_hosts(job)
    with Signals() as signals, tempfile.TemporaryDirectory(prefix="rueda-launch-") as folder:
        carried = make_key(inherited, Path(folder), elsewhere=not stays_here(hosts, hand_over.launcher))
        with _make_store(carried, store_hosts_for(hosts, hand_over.launcher, job.interfaces)) as store:
            console.narrate(f"serving the store at {shown(store.addresses)}")
            environment = job_environment(
                inherited,
                {**interface_environment(job.interfaces), **job.options},
                store=store.addresses,
                secret_key=None,
                job_id=carried.name,
            )
            # Whoever chose MPI to move the tensors keeps it: here there is one.
            if "HOROVOD_CPU_OPERATIONS" in inherited:
                environment["HOROVOD_CPU_OPERATIONS"] = inherited["HOROVOD_CPU_OPERATIONS"]
            line = start_line(
                make_order(job, hand_over, environment, hosts, Path(folder), carried.card), hand_over.launcher
            )
            limits = _Limits(
                start_timeout_s(job.options, inherited),
                silence_s(job.options, inherited),
                failure_patience_s(job.options, inherited),
            )
            console.narrate(f"starting {shlex.join(line.words)}")
            watch = _Watch(job, hosts, hand_over.launcher, line, store, carried.key, limits, signals, console)
            try:
                watch.run()
            finally:
                if results is not None:
                    results.sent.update(watch.results)
                    # Any host of the job could have put them into the store.
                    if stays_here(hosts, hand_over.launcher):
                        results.here.update(range(job.processes))


class _Watch:
    """Watches one job from the start of the other launcher to its end."""

    def __init__(
        self,
        job: Job,
        hosts: Sequence[HostSlots],
        launcher: str,
        line: StartLine,
        store: StoreServer,
        key: bytes,
        limits: _Limits,
        signals: Signals,
        console: Console,
    ) -> None:
        self._job = job
        self._wanted = hosts
        self._launcher = launcher
        self._line = line
        self._connect: Callable[[], StoreClient] = lambda: StoreClient(
            store.address, key, _CLIENT_S, "the launching process", job=store.job
        )
        self._store = store
        self._limits = limits
        self._beats: dict[int, tuple[object, float]] = {}  # of each rank, and when it was new
        self._look_at = 0.0
        self._signals = signals
        self._signals_seen = 0
        self._console = console
        self._started = time.monotonic()
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._client = self._connect()
        self._slots: tuple[Slot, ...] = ()
        self._reports: dict[int, Report] = {}
        self.results: dict[int, bytearray] = {}
        self._ends: list[End] = []  # of ranks that were not told to
        self._failed_at: float | None = None  # the first of them that failed
        self._first: LaunchError | None = None
        self._over = False
        self._status: int | None = None  # of the other launcher

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._await_arrivals, name="arrivals", daemon=True),
            threading.Thread(target=self._await_reports, name="reports", daemon=True),
        ]
        try:
            child = subprocess.Popen(
                self._line.words,
                env=self._line.environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches us only, who decide
            )
        except OSError as error:
            raise LaunchError(f"{self._line.words[0]} cannot be started: {error.strerror}") from error
        try:
            for thread in threads:
                thread.start()
            self._client.watch(JOB, -1)
            self._watch(child)
            missing = self._missing()
            self._settle()
            self._end_child(child)
            if self._first is None and missing:
                self._first = self._silent(missing)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            _kill_session(child.pid)
            self._client.close()
        self._raise()

    # While it runs.

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Until the other launcher has ended, or the job has to be ended."""
        ended = os.pidfd_open(child.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for source in (ended, self._bell, self._client.fileno(), self._signals.fileno()):
                    selector.register(source, selectors.EVENT_READ)
                while self._first is None and len(self._reports) < self._job.processes:
                    ready = {key.fd for key, _ in selector.select(self._wait_s())}
                    if self._client.fileno() in ready:
                        self._client.pump()
                    self._take_news()
                    self._look_into_failure()
                    if self._signals.fileno() in ready:
                        self._signals.clear()
                        self._take_signal(child)
                    if ended in ready:
                        self._status = child.wait()
                        self._take_late_news()
                        return
                    if self._client.aborted and self._first is None:
                        self._take_late_news()
                        return
                    if self._slots and time.monotonic() >= self._look_at:
                        self._look_for_silent_ranks()
        finally:
            os.close(ended)

    def _take_news(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass  # nothing new
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

    def _take_report(self, rank: int, value: object) -> None:
        who = f"rank {rank} on host {self._slots[rank].hostname}" if self._slots else f"rank {rank}"
        try:
            report = understood(Report, value, who)
            if report.result_parts:
                self.results[rank] = fetch(self._client, f"{RESULT}{rank}/", report.result_parts, who)
        except LaunchError as error:
            self._reports[rank] = Report(1)  # nothing more is expected of it
            self._fail(error)
            return
        self._reports[rank] = report
        text = harmless(report.text, "\n")
        self._console.narrate(f"rank {rank} {describe_exit(report.exit_code)}")
        if report.refused:
            self._fail(CommandNotStarted(text, exit_code=report.exit_code or 126))
        elif not report.told:
            self._take_end(End(rank, report.exit_code, text, report.because))

    def _take_end(self, end: End) -> None:
        self._ends.append(end)
        if end.exit_code != 0 and self._failed_at is None:
            self._failed_at = time.monotonic()
        if self._slots:
            how = describe_exit(end.exit_code) + (f": its script {end.text}" if end.text else "")
            tell_store(self._store, self._slots)(end.rank, how)

    def _look_into_failure(self, *, at_once: bool = False) -> None:
        """The ranks that are left have had their time, or all have ended: name the first that failed."""
        if self._failed_at is None or self._first is not None:
            return
        over = time.monotonic() >= self._failed_at + self._limits.patience_s
        if over or at_once or len(self._reports) == self._job.processes:
            end = first_cause(self._ends, {rank: Word(True) for rank in self._missing()})
            assert end is not None
            self._fail(self._failure(end))

    def _wait_s(self) -> float | None:
        if self._failed_at is not None:
            return max(0.0, self._failed_at + self._limits.patience_s - time.monotonic())
        return _LOOK_S if self._slots else None

    def _take_late_news(self) -> None:
        """The last reports may be on their way when the other launcher has ended already."""
        until = time.monotonic() + _HEAR_S / 2
        while self._first is None and len(self._reports) < self._job.processes and time.monotonic() < until:
            self._take_news()
            time.sleep(0.01)
        self._look_into_failure(at_once=True)

    def _look_for_silent_ranks(self) -> None:
        """A host that is off or cut off closes no connection."""
        book = self._client.collect(BEAT, 0, 0.0)
        now = time.monotonic()
        self._look_at = now + _LOOK_S
        for rank in self._missing():
            number = book.get(str(rank))
            if rank not in self._beats or self._beats[rank][0] != number:
                self._beats[rank] = number, now
        silent = [rank for rank in self._missing() if now > self._beats[rank][1] + self._limits.silence_s]
        if silent:
            where = ", ".join(dict.fromkeys(self._slots[rank].hostname for rank in silent))
            self._fail(
                WorkerFailed(
                    f"nothing has been heard of {_listed(silent)} on {where} for "
                    f"{self._limits.silence_s:g} s: the host is off, cut off or stopped.",
                    rank=silent[0],
                    host=self._slots[silent[0]].hostname,
                    exit_code=1,
                )
            )

    def _arrive(self, hosts: Sequence[str]) -> None:
        self._store.narrow()
        self._slots = place_ranks(hosts)
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
            self._client.set(f"{PLACE}{slot.rank}", said(place))

    def _take_signal(self, child: subprocess.Popen[bytes]) -> None:
        signum = self._signals.arrived[0]
        self._signals_seen = len(self._signals.arrived)
        elapsed_s = time.monotonic() - self._started
        self._fail(
            JobInterrupted(f"{signal_name(signum)} ended the job after {elapsed_s:.1f} s.", signum=signum),
            signum,
        )
        if not self._slots:  # no rank hears us yet
            _signal_group(child, signum)

    def _failure(self, end: End) -> WorkerFailed:
        elapsed_s = (self._failed_at or time.monotonic()) - self._started
        others = self._job.processes - sum(each.exit_code == 0 or each == end for each in self._ends)
        others -= end not in self._ends
        because = f"; {_count(others)} ended because of it" if others else ""
        host = self._slots[end.rank].hostname
        return WorkerFailed(
            f"{describe_failure(end, host, elapsed_s)}{because}.",
            rank=end.rank,
            host=host,
            exit_code=end.exit_code or 1,
            last_lines=self._reports[end.rank].tail,
        )

    def _fail(self, cause: LaunchError, signum: int = signal.SIGTERM) -> None:
        """The first cause counts; all ranks are ended."""
        if self._first is None:
            self._first = cause
            self._end_ranks(signum)

    # At the end.

    def _end_ranks(self, signum: int = signal.SIGTERM) -> None:
        if not self._over:
            self._over = True
            self._client.set(OVER, {"signum": int(signum)})
            self._client.abort(JOB, Cause("the job is over"))

    def _settle(self) -> None:
        """Wait for ranks that are still there to end, when not all have ended by themselves."""
        if not self._missing():
            return
        self._end_ranks()
        began = time.monotonic()
        while len(self._reports) < self._job.processes:
            now = time.monotonic()
            heard = set(ranks_in(self._client.collect(HEARD, 0, 0.0), self._job.processes))
            if now > began + _HEAR_S and not heard - set(self._reports):
                break
            if now > began + _GRACE_S + 2 * _HEAR_S or len(self._signals.arrived) > self._signals_seen:
                break
            self._take_news()
            time.sleep(0.02)

    def _silent(self, missing_before: Sequence[int]) -> LaunchError:
        """Why the job failed, when no rank has said so."""
        status = self._status or 0
        end = "had to be ended" if self._status is None else describe_exit(self._status)
        if not self._slots:
            return LauncherFailed(
                f"{self._launcher} {end} before all ranks had started: see its messages above.",
                exit_code=status or 1,
            )
        gone = self._missing() or missing_before
        where = ", ".join(dict.fromkeys(self._slots[rank].hostname for rank in gone))
        lost = f"{_listed(gone)} on {where} did not report {'their' if len(gone) > 1 else 'its'} end"
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
        cause = self._client.aborted.get(JOB)
        return cause.missing[0] if cause is not None and cause.missing else -1

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._job.processes) if rank not in self._reports]

    def _end_child(self, child: subprocess.Popen[bytes]) -> None:
        patience_s = _LEAVE_S if not self._missing() else _GRACE_S
        for signum in (0, signal.SIGTERM, signal.SIGKILL):
            if signum:
                self._console.tell(
                    f"{self._launcher} does not end by itself: sending it {signal_name(signum)}"
                )
                _signal_group(child, signum)
            try:
                status = child.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
            self._status = status if not signum else self._status
            return

    def _raise(self) -> None:
        if self._first is not None:
            raise self._first
        if self._status:
            raise LauncherFailed(
                f"every rank reported success, but {self._launcher} {describe_exit(self._status)}: see its "
                "messages above.",
                exit_code=self._status,
            )

    # Threads that wait for the store, and put news into the queue.

    def _await_arrivals(self) -> None:
        processes = self._job.processes
        try:
            with self._connect() as client:
                book = client.collect(ARRIVED, processes, self._limits.start_s)
        except StoreTimeout as error:
            came = {key.removeprefix(ARRIVED) for key in error.keys}
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
                        book = client.collect(ENDED, known + 1, _FOREVER_S)
                    except StoreTimeout:
                        continue
                    known = len(book)
                    for rank in ranks_in(book, self._job.processes):
                        if rank not in told:
                            self._tell(_Ended(rank, book[str(rank)]))
                            told.add(rank)
        except RendezvousError:
            return

    def _tell(self, news: _News) -> None:
        self._news.put(news)
        os.eventfd_write(self._bell, 1)


def _make_store(carried: CarriedKey, hosts: Sequence[str]) -> StoreServer:
    try:
        return StoreServer(carried.key, bind_host=hosts, job=carried.name)
    except OSError as error:
        raise LaunchError(f"The ranks' store cannot be served on {join_hosts(hosts)}: {error}") from error


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
