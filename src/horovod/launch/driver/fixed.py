"""The driver of a job whose ranks are all known: the first failure ends all.

A rank that succeeds early ends nobody. When one has failed, the others get some time, until it is known which
failed first (`Causes`). Ranks that still run afterwards are ended.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from horovod.errors import HorovodError
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    Failed,
    FewDevices,
    Finished,
    HostFacts,
    HostLost,
    HostReached,
    HostRetried,
    LeftBehind,
    Placed,
    Refused,
    Said,
    Started,
    Stopped,
)
from horovod.launch.contracts.signals import signal_name
from horovod.launch.driver.actions import Finish, Kill, Reach, Spoil
from horovod.launch.driver.causes import Causes, RankOutcome, describe_exit
from horovod.launch.driver.driver import Driver
from horovod.launch.driver.reaching import Reaching
from horovod.launch.phrases import counted

__all__ = ["FixedDriver", "Outcome"]

_PATIENCE_S = 1.0  # of the user, before being told why it takes longer


@dataclass(frozen=True)
class Outcome:
    """The end of a job. At most one of `failure`, `refused`, `error` and `signum` is set: the one that came
    first. None is set if a host was lost before.
    """

    elapsed_s: float
    """From the start to that first cause, or to the end if all went well."""
    failure: RankOutcome | None = None
    """The end of the rank that failed first, with what it said."""
    refused: Refused | None = None
    error: HorovodError | None = None
    """Error of the job's launcher."""
    signum: int | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Of each rank, if that was ever known."""
    ended: int = 0
    """Ranks that had not ended when the first cause came, and were ended for it."""
    lost: tuple[HostLost, ...] = ()
    survivors: tuple[int, ...] = ()


class FixedDriver(Driver):
    """The first rank that fails, or the first signal to this process, ends the others. A second signal kills
    them without further waiting.

    Args:
        hosts: of each rank; empty: it is told later (`Placed`).
        size: how many ranks there are.
        patience_s: how long ranks that a world needs may take to end by themselves when one has failed.
        reaching: the hosts that are reached first; None: all workers are being started.
        speaks: the user hears from here that a signal has come and why it takes long; else from another
            process.
    """

    def __init__(
        self,
        hosts: Mapping[int, str],
        size: int,
        patience_s: float,
        now: float,
        *,
        reaching: Reaching | None = None,
        speaks: bool = True,
    ) -> None:
        super().__init__(now)
        self._reaching = reaching
        self._reached = 0
        self.actions += [Reach(name) for name in (reaching.names if reaching is not None else ())]
        self.hosts_of = dict(hosts)
        self._size = size
        self._speaks = speaks
        self._causes = Causes(patience_s)
        self._running: set[int] = set()
        self._not_ended = set(range(size)) if not hosts else set(hosts)
        self._signals = 0
        self._failure: RankOutcome | None = None
        self._refused: Refused | None = None
        self._error: HorovodError | None = None
        self._lost: list[HostLost] = []
        self._ended = 0
        self._caused_at: float | None = None
        self._ended_at = 0.0
        self._explained = False
        self._survivors: tuple[int, ...] = ()

    @property
    def running(self) -> Collection[int]:
        return self._running

    @property
    def ending(self) -> bool:
        return self._has_cause()

    @property
    def reached(self) -> int:
        return self._reached

    @property
    def ready(self) -> bool:
        """All hosts have been reached: workers can be started."""
        return self._reaching is not None and not self._reaching.waiting and not self.finished

    def begin(self, now: float) -> dict[str, HostFacts]:
        """All workers are being started, on these hosts."""
        assert self._reaching is not None
        reaching, self._reaching = self._reaching, None
        self.began_at = now
        return reaching.found

    @property
    def progress(self) -> tuple[int, int, bool]:
        return len(self._running), self._size - len(self._not_ended), self.ending or self._causes.open

    def outcome(self, now: float) -> Outcome:
        """The end of the job."""
        return Outcome(
            elapsed_s=(now if self._caused_at is None else self._caused_at) - self.began_at,
            failure=self._failure,
            refused=self._refused,
            error=self._error,
            hosts=self.hosts_of,
            signum=self.signum or None,
            ended=self._ended,
            lost=tuple(self._lost),
            survivors=self._survivors,
        )

    def hear(self, event: Event, now: float) -> None:
        match event:
            case HostReached() | HostRetried() | HostLost() if self._reaching is not None:
                if text := self._reaching.hear(event):
                    self.narrate(text)
                self._reached = len(self._reaching.found)
            case Placed(slots):
                self.hosts_of = {slot.rank: slot.hostname for slot in slots}
            case Started(rank, pid):
                self._running.add(rank)
                if pid:
                    self.narrate(f"rank {rank} runs as process {pid} on {self.hosts_of[rank]}")
            case Said(rank, line):
                self._causes.hear(rank, line, now)
            case Stopped(rank):
                self._causes.stand(rank, now)
            case Continued(rank):
                self._causes.go_on(rank)
            case Exited():
                self._exited(event, now)
            case Refused():
                # Who reports it has ended the ranks of its host that were started before.
                if not self._has_cause():
                    self._refused = event
                    self._end(signal.SIGTERM, now)
            case Failed(error) if self._reaching is not None:
                self.finished, self._error = True, error
            case Failed(error):
                if not self._has_cause():
                    self._error = error
                    self._end(signal.SIGTERM, now)
            case HostLost():
                self._host_lost(event, now)
            case FewDevices(rank, devices, ranks):
                self.tell(_few_devices(self.hosts_of[rank], devices, ranks))
            case LeftBehind(processes):
                self.tell(f"ending {counted(processes, 'process', 'processes')} that the ranks left behind")
            case Finished(survivors, failure):
                self.finished, self._survivors = True, survivors
                self._look_into_failure(now, at_once=True)
                if not (self._has_cause() or self._lost):
                    self._error = failure
            case _:
                pass

    def interrupt(self, signum: int, now: float) -> None:
        if self._reaching is not None:
            self.finished, self.signum = True, signum
            self._error = self._error or self._reaching.interrupted(signum)
            return
        self._look_into_failure(now, at_once=True)
        self._signals += 1
        name = signal_name(signum)
        if self._signals > 1:
            self.actions.append(Kill())
            if self._speaks:
                self.tell(f"second signal ({name}): killing what still runs")
        elif self._has_cause():
            self.narrate(f"{name} received; the ranks are being ended already")
        else:
            self.signum = signum
            if signum == signal.SIGINT and self._speaks:
                self.tell_of_interrupt(len(self._not_ended))
            self._end(signum, now)
            self.narrate(f"{name} received, forwarded to all ranks")

    def settle(self, now: float) -> None:
        if self._reaching is not None and self._reaching.settled(now) and self._error is None:
            self._error = self._reaching.failure()
            self.finished = self._error is not None
        self._look_into_failure(now, at_once=False)
        if self._has_cause() and not self._explained and now >= self._ended_at + _PATIENCE_S:
            self._explained = True
            self._explain_waiting()

    def due(self, now: float) -> float:
        due = [] if self._has_cause() else self._causes.due(self._not_ended, now)
        if self._reaching is not None:
            due.append(self._reaching.deadline)
        if self._has_cause() and not self._explained:
            due.append(self._ended_at + _PATIENCE_S)
        return min(due, default=math.inf)

    def _exited(self, event: Exited, now: float) -> None:
        rank, exit_code, told = event
        end = self._causes.end(rank, exit_code, now, counts=not told)
        if told:
            pass
        elif exit_code != 0 and not self._has_cause():
            self._causes.begin(self._not_ended, now)
        elif (known := self._failure) is not None and not self._signals:
            corrected = self._causes.corrects(known, end, self._ended_at, now)
            self._failure = end if corrected else known
        self._running.discard(rank)
        self._not_ended.discard(rank)
        self.narrate(f"rank {rank} {describe_exit(exit_code)}")
        why = f": its script {end.text}" if end.text else ""
        self._spoil(rank, self.hosts_of[rank], describe_exit(exit_code) + why)

    def _host_lost(self, event: HostLost, now: float) -> None:
        self._running.difference_update(event.ranks)
        self._not_ended.difference_update(event.ranks)
        self._lost.append(event)
        self.narrate(f"host {event.host} is lost: {event.reason}")
        for rank in event.ranks[:1]:
            self._spoil(rank, event.host, f"was lost with its host: {event.reason}")
        if not self._has_cause():
            self._causes.begin(self._not_ended, now)

    def _spoil(self, rank: int, host: str, how: str) -> None:
        """Let nobody wait in ``init()`` for a rank that is gone."""
        why = (
            f"Rank {rank} on host {host} {how}. No world can be formed without it; look at its own output "
            "first."
        )
        self.actions.append(Spoil(None, why, rank, host))

    def _look_into_failure(self, now: float, *, at_once: bool) -> None:
        """End what is left of a job that has failed, when nothing is to be learned any more."""
        causes = self._causes
        if self._has_cause():
            return
        if not causes.open:
            self._look_into_stopped(now)
            return
        if not (at_once or causes.over(self._running, now)):
            if causes.due_to_tell(now):
                self.tell(
                    f"{self._describe_first()}; giving the others up to {causes.patience_s:g} s to notice "
                    "and end by themselves"
                )
            return
        self._failure = causes.first(self._not_ended)
        if self._failure is not None and self._failure.because in self._ranks_of_lost_hosts():
            self._failure = None
        self._end(signal.SIGTERM, now)
        self._caused_at = causes.began_at
        not_others = {self._failure.rank} if self._failure is not None else self._ranks_of_lost_hosts()
        self._ended = len(causes.involved - not_others)

    def _look_into_stopped(self, now: float) -> None:
        """End ranks that stand still, if nobody else is left. One that goes on may have work to do."""
        stopped = self._causes.stopped(self._not_ended)
        if stopped is not None and now >= self._causes.stopped_until(self._not_ended):
            self._failure = stopped
            self._end(signal.SIGTERM, now)
            self._ended = len(self._not_ended) - 1

    def _describe_first(self) -> str:
        end = self._causes.first(self._not_ended)
        if end is None:
            return f"host {self._lost[0].host} was lost"
        return f"rank {end.rank} on {self.hosts_of[end.rank]} {describe_exit(end.exit_code)}"

    def _ranks_of_lost_hosts(self) -> set[int]:
        return {rank for lost in self._lost for rank in lost.ranks}

    def _end(self, signum: int, now: float) -> None:
        self.actions.append(Finish(signum))
        self._ended = len(self._not_ended)
        self._caused_at = self._ended_at = now

    def _has_cause(self) -> bool:
        return self._caused_at is not None

    def _explain_waiting(self) -> None:
        if not (self._running and self._speaks):
            return
        ranks = ", ".join(str(rank) for rank in sorted(self._running)[:8])
        more = ", ..." if len(self._running) > 8 else ""
        self.tell(
            f"waiting for {counted(len(self._running), 'rank')} ({ranks}{more}) to end; "
            "SIGKILL follows 5 s after the first signal"
        )


def _few_devices(host: str, devices: int, ranks: int) -> str:
    for_ranks = f"for {counted(ranks, 'rank')}"
    if not devices:
        return f"host {host} has no device {for_ranks}: --device-per-rank changes nothing there"
    return f"host {host} has {counted(devices, 'device')} {for_ranks}: the first ones are used more than once"
