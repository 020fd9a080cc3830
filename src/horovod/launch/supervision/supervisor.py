"""Watches a job until none of its processes runs: which rank failed first, and when the others are ended.

When a rank has failed, the others get some time. They learn of the failure from each other, run their
handlers and end by themselves, and their words tell which rank was the first. Ranks that still run afterwards
are ended.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from horovod.bootstrap.place.starter import Word
from horovod.errors import LaunchError
from horovod.launch.contracts.errors import JobInterrupted
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    Failed,
    FewDevices,
    Finished,
    HostLost,
    LeftBehind,
    PassedOn,
    Placed,
    Refused,
    Said,
    Started,
    Stopped,
)
from horovod.launch.contracts.launcher import Workers
from horovod.launch.contracts.signals import Signals, signal_name
from horovod.launch.driver.causes import End, blamed, first_cause, heard, lost_by
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.phrases import counted
from horovod.launch.placement.hosts import Slot
from horovod.launch.supervision.passing import Passing

__all__ = ["Outcome", "Supervisor", "describe_exit"]

_REORDERED_S = 1.0  # news of hosts may be so late
_NOTICEABLE_S = 0.5  # who waits longer is told why
_LEAVING_S = 1.0  # a rank that has just left its world may so long end by itself, and say why
_PATIENCE_S = 1.0  # of the user, before being told why it takes longer


@dataclass(frozen=True)
class Outcome:
    """The end of a job. At most one of `failure`, `refused`, `error` and `signum` is set: the one that came
    first. None is set if a host was lost before.
    """

    elapsed_s: float
    """From the start to that first cause, or to the end if all went well."""
    failure: End | None = None
    """The end of the rank that failed first, with what it said."""
    refused: Refused | None = None
    error: LaunchError | None = None
    """Error of the job's launcher."""
    signum: int | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Of each rank, if that was ever known."""
    ended: int = 0
    """Ranks that had not ended when the first cause came, and were ended for it."""
    lost: tuple[HostLost, ...] = ()
    survivors: tuple[int, ...] = ()


class Supervisor:
    """Waits until nothing of the job runs.

    The first rank that fails, or the first signal to this process, ends the others; a rank that succeeds
    early does not. A second signal kills them without further waiting.

    Args:
        patience_s: how long ranks that a world needs may take to end by themselves when one has failed.
        gone: is told of every rank that is gone, its host, and how: "exited with status 3".
        size: how many ranks there are, where `slots` is empty as the launcher will say it (`Placed`).
        passing: tells what has become of signals that are passed on, in place of the console.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        workers: Workers,
        signals: Signals,
        console: Console,
        status: Status | None = None,
        patience_s: float = 0.0,
        gone: Callable[[int, str, str], None] = lambda rank, host, how: None,
        size: int = 0,
        passing: Passing | None = None,
    ) -> None:
        self._status = status
        self._gone = gone
        self._cause_finder = _CauseFinder(patience_s)
        self._hosts = {slot.rank: slot.hostname for slot in slots}
        self._workers = workers
        self._signals = signals
        self._console = console
        self._passing = passing or Passing(signals, console, workers.pass_on)
        self._speaks = passing is None  # else another process tells the user
        self._started = time.monotonic()
        self._running: set[int] = set()
        self._size = size or len(slots)
        self._not_ended = set(self._hosts or range(size))
        self._signals_seen = 0
        self._failure: End | None = None
        self._refused: Refused | None = None
        self._error: LaunchError | None = None
        self._signum: int | None = None
        self._lost: list[HostLost] = []
        self._ended = 0
        self._caused_at: float | None = None
        self._ended_at = 0.0
        self._explained = False

    def run(self) -> Outcome:
        """
        Raises:
            LaunchError: the ranks can no longer be watched.
        """
        finished: Finished | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._workers.fileno(), selectors.EVENT_READ)
            selector.register(self._signals.fileno(), selectors.EVENT_READ)
            while finished is None:
                for key, _ in selector.select(self._wait_s()):
                    if key.fd == self._signals.fileno():
                        self._signals.clear()
                    else:
                        for event in self._heard():
                            finished = self._take(event) or finished
                self._look_into_failure(at_once=finished is not None)
                self._forward_signals()
                self._passing.forward(self._running, ending=self._has_cause())
                if self._status is not None:
                    self._status.running = len(self._running)
                    self._status.ended = self._size - len(self._not_ended)
                    self._status.ending = self._has_cause() or self._cause_finder.open
                self._explain_waiting()
        if finished.failure is not None and not (self._has_cause() or self._lost):
            self._error = finished.failure
        return Outcome(
            elapsed_s=(self._caused_at or time.monotonic()) - self._started,
            failure=self._failure,
            refused=self._refused,
            error=self._error,
            hosts=self._hosts,
            signum=self._signum,
            ended=self._ended,
            lost=tuple(self._lost),
            survivors=finished.survivors,
        )

    def _heard(self) -> Sequence[Event]:
        """
        Raises:
            JobInterrupted: a signal has ended the job, and what watches the ranks with it, as batch systems
                do.
            LaunchError: the ranks can no longer be watched.
        """
        try:
            return self._workers.events()
        except LaunchError as error:
            if not self._signals.arrived:
                raise
            signum = self._signals.arrived[0]
            raise JobInterrupted(
                f"{signal_name(signum)} ended the job after {time.monotonic() - self._started:.1f} s, and "
                "the process that watched the ranks has ended as well; all ranks were killed.",
                signum=signum,
            ) from error

    def _take(self, event: Event) -> Finished | None:
        match event:
            case Placed(slots):
                self._hosts = {slot.rank: slot.hostname for slot in slots}
            case Started(rank, pid):
                self._running.add(rank)
                if pid:
                    self._console.narrate(f"rank {rank} runs as process {pid} on {self._hosts[rank]}")
            case Said(rank, line):
                self._cause_finder.hear(rank, line)
            case Stopped(rank):
                self._cause_finder.stand(rank)
            case Continued(rank):
                self._cause_finder.go_on(rank)
            case Exited(rank, exit_code, told):
                end = self._cause_finder.end(rank, exit_code, counts=not told)
                if told:
                    pass
                elif exit_code != 0 and not self._has_cause():
                    self._cause_finder.begin(self._not_ended)
                elif self._is_earlier_cause(end):
                    self._failure = end
                self._running.discard(rank)
                self._passing.leave((rank,))
                self._not_ended.discard(rank)
                self._console.narrate(f"rank {rank} {describe_exit(exit_code)}")
                why = f": its script {end.text}" if end.text else ""
                self._gone(rank, self._hosts[rank], describe_exit(exit_code) + why)
            case Refused():
                # Who reports it has ended the ranks of its host that were started before.
                if not self._has_cause():
                    self._refused = event
                    self._end(signal.SIGTERM)
            case Failed(error):
                if not self._has_cause():
                    self._error = error
                    self._end(signal.SIGTERM)
            case HostLost(host, ranks, reason):
                self._running.difference_update(ranks)
                self._passing.leave(ranks)
                self._not_ended.difference_update(ranks)
                self._lost.append(event)
                self._console.narrate(f"host {host} is lost: {reason}")
                for rank in ranks[:1]:
                    self._gone(rank, host, f"was lost with its host: {reason}")
                if not self._has_cause():
                    self._cause_finder.begin(self._not_ended)
            case PassedOn():
                self._passing.hear(event)
            case FewDevices(rank, devices, ranks):
                self._console.tell(_few_devices(self._hosts[rank], devices, ranks))
            case LeftBehind(processes):
                left = counted(processes, "process", "processes")
                self._console.tell(f"ending {left} that the ranks left behind")
            case Finished():
                return event
        return None

    def _look_into_failure(self, *, at_once: bool) -> None:
        """End what is left of a job that has failed, when nothing is to be learned any more."""
        finder = self._cause_finder
        if self._has_cause():
            return
        if not finder.open:
            self._look_into_stopped()
            return
        if not (at_once or finder.over(self._running) or self._refused or self._unforwarded()):
            if finder.due_to_tell():
                self._console.tell(
                    f"{self._describe_first()}; giving the others up to {finder.patience_s:g} s to notice "
                    "and end by themselves"
                )
            return
        self._failure = finder.first(self._not_ended)
        if self._failure is not None and self._failure.because in self._ranks_of_lost_hosts():
            self._failure = None
        self._end(signal.SIGTERM)
        self._caused_at = finder.began_at
        not_others = {self._failure.rank} if self._failure is not None else self._ranks_of_lost_hosts()
        self._ended = len(finder.involved - not_others)

    def _look_into_stopped(self) -> None:
        """End ranks that stand still, if nobody else is left. One that goes on may have work to do."""
        finder = self._cause_finder
        stopped = finder.stopped(self._not_ended)
        if stopped is not None and time.monotonic() >= finder.stopped_until(self._not_ended):
            self._failure = stopped
            self._end(signal.SIGTERM)
            self._ended = len(self._not_ended) - 1

    def _describe_first(self) -> str:
        end = self._cause_finder.first(self._not_ended)
        if end is None:
            return f"host {self._lost[0].host} was lost"
        return f"rank {end.rank} on {self._hosts[end.rank]} {describe_exit(end.exit_code)}"

    def _ranks_of_lost_hosts(self) -> set[int]:
        return {rank for lost in self._lost for rank in lost.ranks}

    def _unforwarded(self) -> bool:
        return len(self._signals.arrived) > self._signals_seen

    def _forward_signals(self) -> None:
        for signum in self._signals.arrived[self._signals_seen :]:
            self._signals_seen += 1
            if self._signals_seen > 1:
                self._workers.kill()
                if self._speaks:
                    self._console.tell(f"second signal ({signal_name(signum)}): killing what still runs")
            elif self._has_cause():
                self._console.narrate(f"{signal_name(signum)} received; the ranks are being ended already")
            else:
                self._signum = signum
                if signum == signal.SIGINT:
                    self._console.tracebacks.leave_out_interrupts()
                    if self._speaks:
                        ranks = counted(len(self._not_ended), "rank")
                        self._console.tell(f"SIGINT received: ending {ranks}; a second one kills them")
                self._end(signum)
                self._console.narrate(f"{signal_name(signum)} received, forwarded to all ranks")

    def _end(self, signum: int) -> None:
        self._workers.end(signum)
        self._ended = len(self._not_ended)
        self._caused_at = time.monotonic()
        self._ended_at = self._caused_at

    def _is_earlier_cause(self, end: End) -> bool:
        """True if this rank failed before the one that is thought to be the first. News of different hosts
        come in any order: a rank that lost its peer may be heard before the peer's end. Nobody of us sends
        SIGKILL so early. Also true if it is the one that was thought to be the first, and has ended after
        all.
        """
        known = self._failure
        if known is None or end.exit_code is None or self._signals_seen:
            return False
        early = time.monotonic() < self._ended_at + _REORDERED_S
        killed = early and end.exit_code == -signal.SIGKILL
        if known.exit_code is None and known.rank == end.rank:
            ours = end.exit_code in (-signal.SIGTERM, -signal.SIGKILL)
            return killed or (end.exit_code != 0 and not ours and end.because is None)
        if known.exit_code is not None and known.exit_code <= 0:
            return False
        failed_by_itself = early and end.exit_code > 0 and end.because is None
        return killed or (known.because == end.rank and failed_by_itself)

    def _has_cause(self) -> bool:
        return self._caused_at is not None

    def _wait_s(self) -> float | None:
        """Until something is due."""
        due = [] if self._has_cause() else self._cause_finder.due(self._not_ended)
        if self._has_cause() and not self._explained:
            due.append(self._ended_at + _PATIENCE_S)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _explain_waiting(self) -> None:
        if not self._has_cause() or self._explained or time.monotonic() < self._ended_at + _PATIENCE_S:
            return
        self._explained = True
        if not (self._running and self._speaks):
            return
        ranks = ", ".join(str(rank) for rank in sorted(self._running)[:8])
        more = ", ..." if len(self._running) > 8 else ""
        self._console.tell(
            f"waiting for {counted(len(self._running), 'rank')} ({ranks}{more}) to end; "
            "SIGKILL follows 5 s after the first signal"
        )


class _CauseFinder:
    """Facts about a failure while it is looked into."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.open = False
        self.began_at = 0.0
        self.involved: frozenset[int] = frozenset()
        """The ranks that had not ended before it."""
        self._told = False
        self._ends: list[End] = []
        self._words: dict[int, Word] = {}
        self._leaving_until: dict[int, float] = {}
        self._ended_at = 0.0
        self._stopped_at: dict[int, float] = {}

    def stand(self, rank: int) -> None:
        """A signal has stopped the process of this rank."""
        self._stopped_at[rank] = time.monotonic()

    def go_on(self, rank: int) -> None:
        self._stopped_at.pop(rank, None)

    def hear(self, rank: int, line: str) -> None:
        word = heard(line)
        if word is not None:
            if self._word_of(rank).in_world and not word.in_world:
                self._leaving_until[rank] = time.monotonic() + _LEAVING_S
            self._words[rank] = word

    def _word_of(self, rank: int) -> Word:
        return self._words.get(rank, Word(False))

    def end(self, rank: int, exit_code: int, *, counts: bool) -> End:
        """This rank has ended. `counts`: it may be the cause."""
        word = self._word_of(rank)
        end = End(rank, exit_code, word.text if exit_code else "", word.because if exit_code else None)
        if counts:
            self._ends.append(end)
        self._ended_at = time.monotonic()
        return end

    def begin(self, not_ended: Collection[int]) -> None:
        if not self.open:
            self.open = True
            self.began_at = time.monotonic()
            self.involved = frozenset(not_ended)

    def over(self, running: Collection[int]) -> bool:
        """Nobody is left who may notice it, or has just done so, or is said to have failed; or all have had
        the time.
        """
        now = time.monotonic()
        named = blamed(self._ends)
        needed = [
            rank
            for rank in running
            if rank in named or self._word_of(rank).in_world or now < self._leaving_until.get(rank, now)
        ]
        return not needed or now >= self.began_at + self.patience_s

    def due(self, not_ended: Collection[int]) -> list[float]:
        """When to look again."""
        if not self.open:
            return [self.stopped_until(not_ended)] if self.stopped(not_ended) is not None else []
        told = [] if self._told else [self.began_at + _NOTICEABLE_S]
        now = time.monotonic()
        leaving = [until for until in self._leaving_until.values() if until > now]
        return [*told, *leaving, self.began_at + self.patience_s]

    def due_to_tell(self) -> bool:
        """True once, when it is time to say why we wait."""
        due = not self._told and time.monotonic() >= self.began_at + _NOTICEABLE_S
        self._told = self._told or due
        return due

    def stopped(self, not_ended: Collection[int]) -> End | None:
        """If all that have not ended stand still in a world, and others have lost them there and have ended:
        the first of them. Nothing else would end them.
        """
        if not not_ended or len(self._stopped_at) < len(not_ended):
            return None  # asked at every event of every job
        if not all(rank in self._stopped_at and self._word_of(rank).in_world for rank in not_ended):
            return None
        tellers = {lost_by(self._word_of(end.rank)): end.rank for end in reversed(self._ends)}
        if not tellers.keys() >= set(not_ended):
            return None
        rank = min(not_ended)
        return End(rank, None, self._word_of(tellers[rank]).text, told_by=tellers[rank], stopped=True)

    def stopped_until(self, not_ended: Collection[int]) -> float:
        """Time until which to wait for `stopped` ranks, counted from the last news of them and the others."""
        return max(self._ended_at, *(self._stopped_at[rank] for rank in not_ended)) + self.patience_s

    def first(self, not_ended: Collection[int]) -> End | None:
        return first_cause(self._ends, {rank: self._word_of(rank) for rank in not_ended})


def describe_exit(exit_code: int | None) -> str:
    """Say what happened to a process, as the end of a sentence; `exit_code` is negative for a signal, None if
    it has failed without ending.
    """
    if exit_code is None:
        return "failed and had not ended"
    if exit_code < 0:
        return f"was killed by {signal_name(-exit_code)} (status {128 - exit_code})"
    return f"exited with status {exit_code}"


def _few_devices(host: str, devices: int, ranks: int) -> str:
    for_ranks = f"for {counted(ranks, 'rank')}"
    if not devices:
        return f"host {host} has no device {for_ranks}: --device-per-rank changes nothing there"
    return f"host {host} has {counted(devices, 'device')} {for_ranks}: the first ones are used more than once"
