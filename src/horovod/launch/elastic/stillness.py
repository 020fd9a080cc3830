"""Workers of an elastic job that stand still: if others wait for them, they are ended after a while.

A rank may be silent for good reasons, such as a validation of some minutes on rank 0: no limit of silence
tells that from a hang. But a process that was stopped by a signal, or is frozen, does nothing, however long
it takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.launch.elastic.workers import SPEAK_S, Worker, Workers, WorkerState

__all__ = ["Stillness"]


class Stillness:
    """
    Args:
        workers: of the job.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._end_at: dict[int, float] = {}

    def look(self, awaited: Sequence[Worker], now: float) -> None:
        """End those of ``awaited`` that stand still, when others have waited for them for long enough."""
        lost_s = self._workers.rules.lost_s
        waiting = [each for each in awaited if each.state is WorkerState.WAITING and not each.stopped]
        still = [each for each in awaited if each.stopped and not (each.told_to_end or each.killed)]
        still = still if waiting else []
        # Who is stopped for that long has been silent for it, too; it may be about to go on.
        known = self._end_at
        self._end_at = {
            each.number: known.get(each.number, max((each.stopped_at or now) + lost_s, now + SPEAK_S))
            for each in still
        }
        for worker in still:
            if now < self._end_at[worker.number]:
                continue
            del self._end_at[worker.number]
            who = f"rank {worker.rank}" if worker.number in self._workers.world else "a newcomer"
            self._workers.kill(
                worker,
                f"{who} on {worker.host} is ended: its process is stopped by a signal or frozen for "
                f"{lost_s:g} s, and others wait for it",
                now,
            )

    def formed(self) -> None:
        """There is another world: nobody is awaited."""
        self._end_at = {}

    def due(self) -> float:
        """When `look` has something to do."""
        return min(self._end_at.values(), default=math.inf)
