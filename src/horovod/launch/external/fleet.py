"""The fleet of a program on PATH that starts the ranks, such as ``mpirun``, and decides where they run.

The program runs as a child and is not believed: a job has succeeded when every rank has reported that its
command did (see `rank_wrapper`). Open MPI 5's ``mpirun``, for one, ends with status 0 when a host dies, and
leaves the ranks of the others running.
"""

from __future__ import annotations

import base64
import math
import selectors
import shlex
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from horovod.bootstrap.network.listening import source_towards
from horovod.bootstrap.network.routes import resolve
from horovod.bootstrap.place.starter import Word, line_of
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.bootstrap.trust import unix
from horovod.errors import LaunchError, RendezvousError, StoreTimeout, WorkerFailed
from horovod.launch.agent_client.feeder import Feeder
from horovod.launch.contracts.errors import CommandNotStarted
from horovod.launch.contracts.events import (
    Event,
    Exited,
    Failed,
    Finished,
    HostFacts,
    HostReached,
    Placed,
    Said,
    Started,
)
from horovod.launch.contracts.fleet import ClosedFleet, FleetPlan, FleetWorker, Grounds, Request
from horovod.launch.contracts.signals import signal_name
from horovod.launch.course.failures import why_unreported
from horovod.launch.course.passing import listed
from horovod.launch.external import messages
from horovod.launch.external.key import make_key
from horovod.launch.external.messages import (
    CALL,
    RESULT,
    RankArrival,
    RankEnd,
    RankInstructions,
    fetch,
    leave,
    said,
    understood,
)
from horovod.launch.external.program import Program, line_for, used_hosts
from horovod.launch.mailbox import Mailbox
from horovod.launch.output.streams import Output
from horovod.launch.placement.addresses import store_hosts
from horovod.launch.placement.hosts import HostSlots, Slot, named, place_ranks
from horovod.runtime.ending import harmless

__all__ = ["ProgramFleet"]

_GRACE_S = 5.0  # between the first signal to a rank and SIGKILL
_HEAR_S = 1.0  # how long a rank may take to learn that the job is over
_LEAVE_S = 10.0  # how long the program may take to end when all ranks have
_CLIENT_S = 10.0
_FOREVER_S = 3600.0
_ASK_MS = 20  # between two looks for ranks that have learned that the job is over
_LOOK_S = 1.0  # between two looks for ranks that are silent
_DOUBT_S = 1.0  # how long the cause may be on its way when the launcher has ended a rank


class ProgramFleet(ClosedFleet):
    """Ranks that the program of the job's launcher starts, each in a wrapper (`rank_wrapper`). They are
    numbered when they are there, and known by their rank.

    A thread of its own watches the program and what its ranks leave in the store; two more wait for the
    store. What comes from other threads are calls, which it makes.
    """

    def __init__(self, request: Request, output: Output) -> None:
        self._request = request
        self._output = output
        self._job = request.job
        self._launcher = request.job.launcher
        self._limits = request.limits
        self._console = request.console
        self._wanted = used_hosts(request.job)
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-launch-")
        self._events: Mailbox[Event | BaseException] = Mailbox()
        self._calls: Mailbox[Callable[[], None]] = Mailbox()
        self._beats: dict[int, tuple[object, float]] = {}  # of each rank, and when it was new
        self._look_at = 0.0
        self._slots: tuple[Slot, ...] = ()
        self._reports: dict[int, RankEnd] = {}
        self._doubtful: dict[int, RankEnd] = {}  # of those that the launcher has ended, not passed on yet
        self._doubt_ends = math.inf
        self._failed = False
        self._signals = 0  # that were passed on
        self._over = False
        self._give_up_at = math.inf  # when what still runs has been killed
        # By a way of our own: mpirun of Open MPI 5 does not tell rank 0 that its input has ended.
        self._sent: deque[int] = deque()  # sizes of pieces that rank 0 has not taken
        self._fed = 0
        self._feeder: Feeder | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def grounds(self) -> Grounds:
        request = self._request
        self._carried = make_key(request.inherited, Path(self._folder.name), elsewhere=not request.all_here)
        if request.all_here:
            places = [unix.fresh_name()]
        else:
            # Where nobody has named hosts, all usable addresses are offered.
            seen = {_address_towards(name) for name in request.elsewhere}
            places = store_hosts(request.job.interfaces, sorted(filter(None, seen)))
        return Grounds(places, True, self._carried.key, self._carried.name, carries_key=False)

    def reach(self, host: str) -> None:
        self._events.put(HostReached(host, HostFacts("", 0)))

    def serve(self, plan: FleetPlan, store: StoreServer | None) -> None:
        assert store is not None
        self._plan = plan
        self._store = store

    def start(self, workers: Sequence[FleetWorker]) -> None:
        """Start the program."""
        store, plan = self._store, self._plan
        line = line_for(self._job, plan.environment, Path(self._folder.name), self._carried.card)
        self._console.narrate(f"starting {shlex.join(line.words)}")
        self._client = self._connect()
        try:
            self._program = Program(line)
        except LaunchError:
            self._client.close()
            raise
        store.observe(
            messages.PASSED, lambda key, value: self._calls.put(partial(self._take_passed, key, value))
        )
        self._feeder = Feeder(plan.stdin, self._feed) if plan.stdin >= 0 else None
        store.observe(messages.TOOK, self._make_room)
        for wait in (self._await_arrivals, self._await_reports):
            threading.Thread(target=wait, daemon=True).start()
        self._thread = threading.Thread(target=self._run, name="external launcher", daemon=True)
        self._thread.start()

    def _connect(self) -> StoreClient:
        store = self._store
        return StoreClient(
            store.address, self._carried.key, _CLIENT_S, "the launching process", job=store.job
        )

    def fileno(self) -> int:
        return self._events.fileno()

    def events(self) -> Sequence[Event]:
        found: list[Event] = []
        for event in self._events.take():
            if isinstance(event, LaunchError):
                found += [Failed(event, unwatched=True), Finished(())]
            elif isinstance(event, BaseException):
                raise event
            else:
                found.append(event)
        return found

    def finish(self, signum: int) -> None:
        self._call(partial(self._forward, signum))

    def kill(self) -> None:
        self._call(self._lose_patience)

    def _call(self, call: Callable[[], None]) -> None:
        if self._thread is not None:
            self._calls.put(call)
        else:  # nothing has been started
            self._events.put(Finished(()))

    def _feed(self, data: bytes) -> None:
        """On the thread of the feeder."""
        self._sent.append(len(data))
        self._store.put(f"{messages.INPUT}{self._fed}", base64.b64encode(data).decode("ascii"))
        self._fed += 1

    def _make_room(self, number: str, _: object) -> None:
        """On the thread of the store."""
        if self._feeder is not None and self._sent:
            self._store.forget(f"{messages.INPUT}{number}")
            self._feeder.make_room(self._sent.popleft())

    def pass_on(self, signum: int) -> None:
        self._calls.put(partial(self._pass_on, signum))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self.finish(signal.SIGTERM)
            self._thread.join()
        if self._feeder is not None:
            self._feeder.close()
        self._calls.close()
        self._events.close()
        self._folder.cleanup()

    # The thread, while the job runs.

    def _run(self) -> None:
        last: Event | BaseException
        try:
            self._client.watch(messages.JOB, -1)
            self._watch()
            missing = self._missing()
            self._settle()
            self._pass_on_doubtful(told=bool(self._missing()))
            status = self._program.end(_GRACE_S if self._missing() else _LEAVE_S, self._tell_slowness)
            hosts = {slot.rank: slot.hostname for slot in self._slots}
            last = Finished(
                (),
                why_unreported(self._launcher, status, hosts, missing, self._missing(), self._first_lost()),
            )
        except BaseException as error:
            last = error
        finally:
            self._program.close()
            self._client.close()
        self._events.put(last)

    def _watch(self) -> None:
        """Until the program has ended, all ranks have, or they shall."""
        with selectors.DefaultSelector() as selector:
            for source in (self._program, self._calls, self._client):
                selector.register(source, selectors.EVENT_READ)
            while not self._over and self._missing():
                ready = {key.fileobj for key, _ in selector.select(self._longest_wait_s())}
                if self._client in ready:
                    self._client.pump()
                self._make_calls()
                if self._program in ready or self._client.aborted:
                    self._make_late_calls()
                    return
                if time.monotonic() >= self._doubt_ends:
                    self._pass_on_doubtful(told=False)
                if self._slots and time.monotonic() >= self._look_at:
                    self._look_for_silent_ranks()

    def _longest_wait_s(self) -> float | None:
        if not self._slots:
            return None
        return min(_LOOK_S, max(0.0, self._doubt_ends - time.monotonic()))

    def _make_calls(self) -> None:
        for call in self._calls.take():
            call()

    def _forward(self, signum: int) -> None:
        """The ranks are to end."""
        self._end_ranks(signum)
        if not self._slots and not self._failed:  # no rank hears us yet
            self._program.send(signum)

    def _pass_on(self, signum: int) -> None:
        if not self._over:
            self._client.abort(f"{messages.SIGNAL}{self._signals}/", messages.signal_cause(signum))
            self._signals += 1

    def _take_passed(self, key: str, value: object) -> None:
        event = messages.passed_on(key, value, self._job.processes)
        if event is not None:
            self._events.put(event)
        self._store.forget(f"{messages.PASSED}{key}")

    def _lose_patience(self) -> None:
        """Let all ranks be killed, which have been told to end."""
        if self._give_up_at == math.inf:
            self._give_up_at = time.monotonic() + _GRACE_S
            for rank in self._missing():
                self._client.abort(f"{messages.KILL}{rank}/", Cause("all ranks are to be killed"))

    def _take_report(self, rank: int, value: object) -> None:
        who = f"rank {rank} on host {self._slots[rank].hostname}" if self._slots else f"rank {rank}"
        try:
            if not self._slots:
                raise LaunchError(f"{who} told how it ended before it was told to start.")
            report = understood(RankEnd, value, who)
            result = fetch(self._client, f"{RESULT}{rank}/", report.result_parts, who)
            self._output.keep(rank, report.tail, result)
        except LaunchError as error:
            self._reports[rank] = RankEnd(1)  # nothing more is expected of it
            self._fail(error)
            return
        self._reports[rank] = report
        text = harmless(report.text, "\n")
        if report.refused:
            self._fail(CommandNotStarted(text, exit_code=report.exit_code or 126))
            return
        self._events.put(Said(rank, line_of(Word(in_world=True, text=text, because=report.because))))
        if report.ended_by_launcher and self._missing():
            self._doubtful[rank] = report
            self._doubt_ends = min(self._doubt_ends, time.monotonic() + _DOUBT_S)
            return
        failed = report.exit_code != 0 and not report.told and report.because is None
        if failed or not self._missing():  # then it is no lost rank, and the order is that of their ends
            self._pass_on_doubtful(told=False)
        self._events.put(Exited(rank, report.exit_code, told=report.told))

    def _pass_on_doubtful(self, *, told: bool) -> None:
        """A launcher that misses a host or a rank ends those that it still reaches. They may tell that before
        it is known what is missing, and are the cause only if nobody is.
        """
        for rank, report in self._doubtful.items():
            self._events.put(Exited(rank, report.exit_code, told=told))
        self._doubtful = {}
        self._doubt_ends = math.inf

    def _make_late_calls(self) -> None:
        """The last reports may be on their way when the program has ended already."""
        until = time.monotonic() + _HEAR_S / 2
        while not self._over and self._missing() and time.monotonic() < until:
            self._calls.wait(max(0, math.ceil((until - time.monotonic()) * 1000)))
            self._make_calls()

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
                    f"nothing has been heard of {listed(silent)} on {self._where(silent)} for "
                    f"{self._limits.silence_s:g} s: the host is off, cut off or stopped.",
                    rank=silent[0],
                    host=self._slots[silent[0]].hostname,
                    exit_code=1,
                )
            )

    def _miss(self, ranks: Sequence[int], waited_s: float) -> None:
        self._fail(
            LaunchError(
                f"{self._launcher} has not started all ranks within {waited_s:g} s: {listed(ranks)} did not "
                "come. Look at its messages; --start-timeout gives more time."
            )
        )

    def _arrive(self, hosts: Sequence[str]) -> None:
        self._store.narrow()
        self._slots = place_ranks(hosts)
        self._events.put(Placed(self._slots))
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
            place = RankInstructions(
                slot,
                silence_s=self._limits.silence_s,
                patience_s=self._limits.patience_s,
                call_parts=call_parts,
                timestamps=self._job.timestamps,
                shown=self._job.shown is None or slot.rank in self._job.shown,
                directory=str(directory.absolute()) if directory is not None else "",
                call_is_input=self._job.call_is_input,
                feeds=self._job.feeds and slot.rank == 0,
            )
            self._client.set(f"{messages.PLACE}{slot.rank}", said(place))
            self._events.put(Started(slot.rank, 0))
            # What it says itself comes with its report: until then it may be in a world.
            self._events.put(Said(slot.rank, line_of(Word(in_world=True))))

    def _fail(self, error: LaunchError) -> None:
        if not self._failed:
            self._failed = True
            self._events.put(Failed(error))

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
        while self._missing() and (now := time.monotonic()) < self._give_up_at:
            heard = set(messages.ranks_in(self._client.collect(messages.HEARD, 0, 0.0), self._job.processes))
            if now > began + _HEAR_S and not heard - set(self._reports):
                break
            if now > began + _GRACE_S + 2 * _HEAR_S:
                break
            self._calls.wait(_ASK_MS)
            self._make_calls()

    def _tell_slowness(self, signum: int) -> None:
        self._console.tell(f"{self._launcher} does not end by itself: sending it {signal_name(signum)}")

    def _first_lost(self) -> int:
        """The rank whose connection ended first, -1 if none did before the job was over."""
        cause = self._client.aborted.get(messages.JOB)
        return cause.missing[0] if cause is not None and cause.missing else -1

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._job.processes) if rank not in self._reports]

    def _where(self, ranks: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys(self._slots[rank].hostname for rank in ranks))

    # Threads that wait for the store, and put news into the queue.

    def _await_arrivals(self) -> None:
        processes = self._job.processes
        try:
            with self._connect() as client:
                book = client.collect(messages.ARRIVED, processes, self._limits.start_s)
        except StoreTimeout as error:
            came = {key.removeprefix(messages.ARRIVED) for key in error.keys}
            missing = sorted(int(key) for key in came if key.isdecimal())
            self._calls.put(partial(self._miss, missing, error.waited_s))
            return
        except RendezvousError:
            return  # the job has ended, and the store with it
        try:
            arrivals = [
                understood(RankArrival, book.get(str(rank)), f"rank {rank}") for rank in range(processes)
            ]
        except LaunchError as error:
            self._calls.put(partial(self._fail, error))
            return
        self._calls.put(partial(self._arrive, [each.host for each in arrivals]))

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
                            self._calls.put(partial(self._take_report, rank, book[str(rank)]))
                            told.add(rank)
        except RendezvousError:
            return


def _address_towards(host: str) -> str:
    """Our own address for packets to `host`; empty if there is no way that leaves this machine."""
    routes, _ = resolve([(host, 0)])
    found = (source_towards(route.host) for route in routes)
    return next((own for own in found if own and own != "::1" and not own.startswith("127.")), "")
