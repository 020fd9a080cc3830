"""Watches a job until none of its processes runs: which rank failed first, and when the others are ended.

When a rank has failed, the others get some time. They learn of the failure from each other, run their
handlers and end by themselves, and their words tell which rank was the first. Ranks that still run afterwards
are ended.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
from horovod.launch.driver.causes import Causes, End, describe_exit
from horovod.launch.output.console import Console
from horovod.launch.output.status import Status
from horovod.launch.phrases import counted
from horovod.launch.placement.hosts import Slot
from horovod.launch.supervision.passing import Passing

__all__ = ["Outcome", "Supervisor"]

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
        self._causes = Causes(patience_s)
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
                    self._status.ending = self._has_cause() or self._causes.open
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
                self._causes.hear(rank, line, time.monotonic())
            case Stopped(rank):
                self._causes.stand(rank, time.monotonic())
            case Continued(rank):
                self._causes.go_on(rank)
            case Exited(rank, exit_code, told):
                end = self._causes.end(rank, exit_code, time.monotonic(), counts=not told)
                if told:
                    pass
                elif exit_code != 0 and not self._has_cause():
                    self._causes.begin(self._not_ended, time.monotonic())
                elif (known := self._failure) is not None and not self._signals_seen:
                    corrected = self._causes.corrects(known, end, self._ended_at, time.monotonic())
                    self._failure = end if corrected else known
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
                    self._causes.begin(self._not_ended, time.monotonic())
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
        finder = self._causes
        if self._has_cause():
            return
        if not finder.open:
            self._look_into_stopped()
            return
        if not (
            at_once or finder.over(self._running, time.monotonic()) or self._refused or self._unforwarded()
        ):
            if finder.due_to_tell(time.monotonic()):
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
        finder = self._causes
        stopped = finder.stopped(self._not_ended)
        if stopped is not None and time.monotonic() >= finder.stopped_until(self._not_ended):
            self._failure = stopped
            self._end(signal.SIGTERM)
            self._ended = len(self._not_ended) - 1

    def _describe_first(self) -> str:
        end = self._causes.first(self._not_ended)
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

    def _has_cause(self) -> bool:
        return self._caused_at is not None

    def _wait_s(self) -> float | None:
        """Until something is due."""
        due = [] if self._has_cause() else self._causes.due(self._not_ended, time.monotonic())
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


def _few_devices(host: str, devices: int, ranks: int) -> str:
    for_ranks = f"for {counted(ranks, 'rank')}"
    if not devices:
        return f"host {host} has no device {for_ranks}: --device-per-rank changes nothing there"
    return f"host {host} has {counted(devices, 'device')} {for_ranks}: the first ones are used more than once"
