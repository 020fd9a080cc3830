"""The verdict whether an elastic job goes on after a world: given when all members have reported or ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.launch.elastic.failures import Failures
from horovod.launch.elastic.workers import Worker, Workers, WorkerState, ranks_of
from horovod.launch.phrases import counted
from horovod.wordings import too_many_resets

__all__ = ["Judge", "Verdict"]

_SPOILED_ROUNDS = 2
"""Worlds in a row that could not be formed, before the host that most blame is left out."""

_HOPELESS_ROUNDS = 6

_FRUITLESS_ROUNDS = 12
"""Worlds in a row that have failed within `_FRUITLESS_S`, though no rank has ended: an error of the script,
which every further world repeats.
"""

_FRUITLESS_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """The decision that follows a world.

    Attributes:
        goes_on: there shall be a next one.
        failures: the members that have failed by themselves.
        error: why the job has failed, if not because of one of them.
    """

    goes_on: bool
    failures: Sequence[Worker] = ()
    error: str = ""


class Judge:
    """
    Args:
        workers: of the job.
        failures: are told who has failed.
        now: when the first world was started.

    Attributes:
        resets: worlds that have followed another one, or a failure.
    """

    def __init__(self, workers: Workers, failures: Failures, now: float) -> None:
        self._workers = workers
        self._failures = failures
        self._formed_at = now
        self._spoiled = 0
        self._fruitless = 0
        self.resets = 0

    def formed(self, now: float) -> None:
        """There is another world."""
        self._formed_at = now

    def judge(self, now: float) -> Verdict:
        """The present world is over. Who has failed there is left out."""
        workers = self._workers
        members = workers.members()
        failures = [member for member in members if member.failed]
        waiting = [member for member in members if member.state is WorkerState.WAITING]
        succeeded = [m for m in members if m.state is WorkerState.ENDED and m.exit_code == 0]
        if succeeded or not waiting:
            self._tell_whether_too_early(succeeded, waiting)
            return Verdict(False, failures, "" if failures else self._never_came_error(members, waiting))
        left = [member for member in waiting if member.said.ready]
        error = self._fruitless_error(left, bool(failures), now)
        if error:
            return Verdict(False, failures, error)
        for failure in failures:
            self._failures.leave_out(failure, now)
        if self._spoiled >= _SPOILED_ROUNDS and not failures:
            self._failures.blame(waiting, self._spoiled, now)
        if all(workers.hosts.has_failed(member.host, member.index) for member in waiting):
            return Verdict(False, failures)
        if self._spoiled >= _HOPELESS_ROUNDS:
            why = next((member.said.why for member in waiting if member.said.why), "no reason is known")
            return Verdict(
                False,
                failures,
                f"{self._spoiled} worlds in a row could not be formed. The last reason: {why}",
            )
        if workers.round > 0 or failures:
            limit = workers.rules.reset_limit
            if limit is not None and self.resets >= limit:
                return Verdict(
                    False,
                    failures,
                    f"The world has changed {counted(self.resets, 'time')} and would change again "
                    f"(--reset-limit). {too_many_resets(limit)}.",
                )
            self.resets += 1
        return Verdict(True, failures)

    def _tell_whether_too_early(self, succeeded: Sequence[Worker], waiting: Sequence[Worker]) -> None:
        """A rank that ends well ends the job. If others have lost it in the middle of something, that may not
        be what the script wants.
        """
        lost = [member for member in waiting if member.said.failed]
        if succeeded and lost:
            others = "others" if len(lost) > 1 else "another one"
            self._workers.log(
                "ended_early",
                f"{ranks_of(succeeded)} ended with status 0, which ends the job, while {others} still trained"
                f": {ranks_of(lost)}",
                ended=[member.rank for member in succeeded],
                training=[member.rank for member in lost],
            )

    def _never_came_error(self, members: Sequence[Worker], waiting: Sequence[Worker]) -> str:
        """A sentence if some wait for a world, and others have ended well and never wanted one. Where nobody
        has wanted one, the command is some other program, and has succeeded.
        """
        never = [member for member in members if member.never_came]
        if not (never and waiting) or self._workers.rules.at_once:
            return ""
        return (
            f"No world can be formed: {ranks_of(never)} ended with status 0 and never called hvd.init(), "
            f"while {ranks_of(waiting)} waited there. Nothing was trained. Does the script end early on some "
            "ranks, or is it another one on some hosts?"
        )

    def _fruitless_error(self, left: Sequence[Worker], failed: bool, now: float) -> str:
        """Count worlds that came to nothing; a sentence if they are too many. ``left``: members that have
        left the world and are ready for another one.
        """
        round_ = self._workers.round
        spoiled = bool(left) and round_ > 0 and not any(member.said.formed for member in left)
        self._spoiled = self._spoiled + 1 if spoiled else 0
        all_left = bool(left) and all(m.said.failed for m in left) and len(left) == len(self._workers.world)
        short = now - self._formed_at < _FRUITLESS_S
        self._fruitless = self._fruitless + 1 if all_left and not failed and short and round_ else 0
        if self._fruitless < _FRUITLESS_ROUNDS:
            return ""
        why = left[0].said.why or "none is known"
        return (
            f"{self._fruitless} worlds in a row have failed within {_FRUITLESS_S:.0f} s, though no rank "
            f"has ended: a further one would, too. The last reason: {why}"
        )
