"""Announcements of changed hosts to rank 0 of an elastic world, and when they are made."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.bootstrap.store.membership import HostUpdateResult
from horovod.launch.driver.actions import Notify
from horovod.launch.elastic.places import Seat
from horovod.launch.elastic.reaches import Reaches
from horovod.launch.elastic.staff import Staff, seats_of
from horovod.launch.elastic.workers import ON_THE_WAY, Worker, Workers, WorkerState
from horovod.launch.phrases import counted

__all__ = ["Announcements"]

_AGAIN_S = (5.0, 60.0)
"""Rank 0 is told of a change again after so long: the first pause, which doubles, and the longest one."""


class Announcements:
    """
    Args:
        workers: what is to be told goes to their actions.
        staff: says who would be in the next world.
        reaches: says which hosts are there.

    Attributes:
        news: how many there have been.
        at: when `look` has something to do, if nothing else happens.
    """

    def __init__(self, workers: Workers, staff: Staff, reaches: Reaches) -> None:
        self._workers = workers
        self._staff = staff
        self._reaches = reaches
        self.news = 0
        self.at = math.inf
        self._again_s = 0.0
        self._told_change: tuple[frozenset[int], frozenset[int]] | None = None
        self._told_slots: frozenset[Seat] = frozenset()

    def formed(self, members: Sequence[Worker]) -> None:
        """There is another world: what was told of the one before has been heeded."""
        self.at, self._told_change = math.inf, None
        self._told_slots = frozenset(seats_of(members))

    def begin_again(self) -> None:
        """Another driver goes on: what was told may not have been heard."""
        self.formed(self._workers.members())

    def look(self, now: float) -> None:
        """Tell rank 0 when the next world would be another one."""
        if self._workers.rules.at_once:
            self._look_at_slots()
        else:
            self._look_at_workers(now)

    def _look_at_workers(self, now: float) -> None:
        workers = self._workers
        members = workers.members()
        gone = [member.number for member in members if not workers.usable(member)]
        staying = [member for member in members if workers.usable(member)]
        coming = self._staff.in_order([*staying, *self._staff.ready()])
        joining = [worker.number for worker in coming if worker.number not in workers.world]
        change = frozenset(gone), frozenset(joining)
        again = change == self._told_change
        if not (gone or joining):
            self.at = math.inf
            return
        if again and now < self.at:
            return
        if not (again or gone) and now < self._gathered_at():
            self.at = self._gathered_at()
            return
        self._told_change = change
        # Rank 0 may have been on its way between two worlds, or between two functions: it is told again.
        self._again_s = min(2 * self._again_s, _AGAIN_S[1]) if again else _AGAIN_S[0]
        self.at = now + self._again_s
        self._notify(bool(gone), bool(joining))
        if again:
            return
        ranks = ", ".join(str(workers[number].rank) for number in gone)
        what = [f"slots of rank {ranks} are gone"] if gone else []
        what += [f"{counted(len(joining), 'worker')} can join"] if joining else []
        workers.log("notified", f"rank 0 is told: {' and '.join(what)}", gone=gone, joining=joining)

    def _look_at_slots(self) -> None:
        """If new slots count at once: tell rank 0 of each change of those that the next world would have."""
        if self._reaches.any_tried():
            return  # what is to be told is not known yet
        staying = [member for member in self._workers.members() if self._workers.usable(member)]
        coming = self._staff.in_order([*staying, *self._staff.fresh()])
        slots = frozenset(seats_of(coming))
        gone, joining = self._told_slots - slots, slots - self._told_slots
        if not (gone or joining):
            return
        self._told_slots = slots
        self._notify(bool(gone), bool(joining))
        what = [f"{counted(len(gone), 'slot')} gone"] if gone else []
        what += [f"{counted(len(joining), 'slot')} new"] if joining else []
        self._workers.log(
            "notified", f"rank 0 is told: {', '.join(what)}", gone=sorted(gone), joining=sorted(joining)
        )

    def _notify(self, removed: bool, added: bool) -> None:
        kind = HostUpdateResult.removed if removed else HostUpdateResult.no_update
        kind |= HostUpdateResult.added if added else kind
        self.news += 1
        self._workers.actions.append(Notify(int(kind)))

    def _gathered_at(self) -> float:
        """Until when newcomers that are ready wait for others that are on their way."""
        workers = self._workers
        living = workers.living()
        ready = [w.since for w in living if w.state is WorkerState.WAITING and w.number not in workers.world]
        coming = any(w.state in ON_THE_WAY and workers.usable(w) for w in living)
        return min(ready) + workers.rules.gather_s if ready and coming else -math.inf
