"""Progress of an elastic job: messages about what it waits for."""

from __future__ import annotations

from horovod.launch.elastic.rules import Phase
from horovod.launch.elastic.shortage import Shortage
from horovod.launch.elastic.staff import Staff
from horovod.launch.elastic.verdict import Judge
from horovod.launch.elastic.workers import ON_THE_WAY, Worker, Workers
from horovod.launch.phrases import counted

__all__ = ["Progress"]

_PAUSE_S = 30.0


class Progress:
    """
    Args:
        workers, staff, shortage, judge: the parts of the driver that know.
        now: what is awaited is said from some time after this on.

    Attributes:
        at: when it is said next.
    """

    def __init__(self, workers: Workers, staff: Staff, shortage: Shortage, judge: Judge, now: float) -> None:
        self._workers = workers
        self._staff = staff
        self._shortage = shortage
        self._judge = judge
        self.at = now + _PAUSE_S

    def begin(self, now: float) -> None:
        """Something else is awaited from now on."""
        self.at = now + _PAUSE_S

    def say(self, phase: Phase, now: float, more: str | None = None) -> None:
        """Every now and then say what is awaited, and ``more`` about it."""
        if now >= self.at:
            self.begin(now)
            text = self.describe(phase, now)
            self._workers.log("waiting", text if more is None else f"{text}. {more}".rstrip())

    def describe(self, phase: Phase, now: float) -> str:
        """One line about what is under way."""
        workers, rules = self._workers, self._workers.rules
        alive = workers.living()
        starting = sum(worker.state in ON_THE_WAY for worker in alive)
        beside = f", {counted(starting, 'worker')} starting" if starting else ""
        match phase:
            case Phase.SLOTS | Phase.SHORT:
                if phase is Phase.SHORT and starting:
                    ready = counted(len(self._staff.candidates()), "rank")
                    coming = counted(starting, "worker")
                    return f"{ready} ready, {rules.least} needed: waiting for {coming} to be ready"
                left_s = max(0, int(self._shortage.until - now))
                return f"{self._shortage.phrase(self.needed(phase))}; giving up in {left_s} s"
            case Phase.FIRST:
                return f"starting {counted(len(workers.world), 'rank')}"
            case Phase.RESET:
                missing = [member for member in workers.members() if not member.reported or member.stopped]
                names = ", ".join(map(_named, missing[:4]))
                return f"reset {self._judge.resets + 1}: waiting for rank {names}{beside}"
            case Phase.TRAINING:
                return f"{counted(len(workers.world), 'rank')} train (world {workers.round}){beside}"
        return f"ending {counted(len(alive), 'worker')}"

    def needed(self, phase: Phase) -> int:
        """Number of slots that a world needs."""
        rules = self._workers.rules
        return rules.processes if phase is Phase.SLOTS else rules.least


def _named(member: Worker) -> str:
    return f"{member.rank} on {member.host}{', which a signal has stopped' if member.stopped else ''}"
