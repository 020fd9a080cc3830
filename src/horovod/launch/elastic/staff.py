"""Members of the next world of an elastic job, their places, and the workers that are started for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from horovod.bootstrap.store.membership import Assigned, Six
from horovod.launch.driver.actions import Action, Start
from horovod.launch.elastic.places import Seat, places_of
from horovod.launch.elastic.reaches import Reaches
from horovod.launch.elastic.workers import Worker, Workers, WorkerState, hosts_of
from horovod.launch.phrases import counted

__all__ = ["Staff", "seats_of"]

_ANYWHERE = (0, 1, 0, 1, 0, 1)


class Staff:
    """
    Args:
        workers: that there are.
        reaches: says where others can be started.
    """

    def __init__(self, workers: Workers, reaches: Reaches) -> None:
        self._workers = workers
        self._reaches = reaches
        self._rules = workers.rules

    def candidates(self) -> list[Worker]:
        """Workers that can be in the next world now, in the order of its ranks: members of the old one before
        newcomers, so that rank 0 has the state. Hosts keep their order; those with members come first.
        """
        return self.in_order(self.ready())

    def ready(self) -> list[Worker]:
        """Workers in slots of the job that wait for a place and could take one. Stopped workers are left out;
        everybody else would wait for them.
        """
        waiting = [each for each in self._workers.living() if each.state is WorkerState.WAITING]
        return [worker for worker in waiting if self._workers.usable(worker) and not worker.stopped]

    def fresh(self) -> list[Worker]:
        """Workers for all free slots, not started."""
        slots = enumerate(self._reaches.free_slots(), start=self._workers.next_number)
        return [Worker(number, host, index) for number, (host, index) in slots]

    def in_order(self, workers: Sequence[Worker]) -> list[Worker]:
        """At most ``most`` of them: those that have the state first, then other members."""
        hosts = {name: number for number, name in enumerate(self._workers.hosts.names)}
        old = {worker.number for worker in workers if self._workers.has_state(worker)}
        old_hosts = {worker.host for worker in workers if worker.number in old}

        def place(worker: Worker) -> tuple[object, ...]:
            newcomer = worker.number not in old
            host = hosts.get(worker.host, len(hosts))
            return (worker.host not in old_hosts, host, newcomer, worker.index if newcomer else worker.rank)

        def claim(worker: Worker) -> tuple[object, ...]:
            return (worker.number not in old, worker.number not in self._workers.world, *place(worker))

        return sorted(sorted(workers, key=claim)[: self._rules.most], key=place)

    def fill(self, trains: bool) -> None:
        """Have a worker on every slot that the next world can use, and the spares; end newcomers whose slot
        is gone. ``trains``: there is a world, so people may wonder when newcomers join.
        """
        workers = self._workers
        for worker in workers.living():
            if worker.number not in workers.world and not worker.told_to_end and not workers.usable(worker):
                workers.end([worker], "its slot is not part of the job any more")
        if self._rules.at_once:
            return
        count = sum(workers.usable(worker) for worker in workers.living())
        room = math.inf if self._rules.most is None else self._rules.most + self._rules.spares
        started: Counter[str] = Counter()
        for host, index in self._reaches.free_slots():
            if count >= room:
                break
            started[host] += self._rules.most is None or count < self._rules.most  # else it is a spare
            count += 1
            worker = Worker(workers.next_number, host, index)
            workers.start(worker, _ANYWHERE)
            workers.log(
                "newcomer",
                f"starting a worker in slot {index} of {host}",
                worker=worker.number,
                host=host,
                slot=index,
            )
        for host, many in started.items():
            if trains and many:
                join = "it joins" if many == 1 else "they join"
                text = f"starting {'a worker' if many == 1 else f'{many} workers'} on {host}"
                workers.log("newcomers", f"{text}; {join} at the next commit", host=host, count=many)
        workers.actions = [self._with_place(each) for each in workers.actions]

    def begin(self, slots: Sequence[tuple[str, int]]) -> None:
        """Start the workers of the first world."""
        places = places_of([Seat(host, index) for host, index in slots])
        for (host, index), place in zip(slots, places, strict=True):
            worker = Worker(self._workers.next_number, host, index)
            self._workers.start(worker, place)
            self._workers.world.append(worker.number)

    def form(self, members: Sequence[Worker], news: int, now: float, took_s: float) -> None:
        """Make these the next world; other members are dismissed.

        Args:
            news: the number of the next news of hosts.
            took_s: since the first has left the world before, if there was one.
        """
        workers = self._workers
        before, old_round = list(workers.world), workers.round
        for member in workers.members():
            if member.state is WorkerState.WAITING and member not in members:
                workers.dismiss(member, "its slot is not part of the job any more", now)
        in_step = all(
            member.number in workers.world and member.said.formed and not member.said.failed
            for member in members
        )
        workers.round += 1
        for worker, place in zip(members, places_of(seats_of(members)), strict=True):
            placed = Assigned(workers.round, place, news, in_step)
            if worker.state is WorkerState.STARTING:
                worker.promised = placed
                workers.start(worker, place)
            else:
                worker.state, worker.rank = WorkerState.PLACED, place[0]
                workers.tell(worker, placed)
        workers.world = [worker.number for worker in members]
        text = f"world {workers.round}: {counted(len(members), 'rank')} on {hosts_of(members)}"
        if old_round:
            text += f", {took_s:.2f} s after the first left world {old_round}"
        workers.log(
            "world",
            text,
            round=workers.round,
            size=len(members),
            members=[{"worker": w.number, "host": w.host, "rank": w.rank} for w in members],
            joined=[number for number in workers.world if number not in before],
            left=[number for number in before if number not in workers.world],
            waited_s=round(took_s, 4) if old_round else 0.0,
            reasons=sorted({worker.said.why for worker in members if worker.said.why}),
        )
        workers.forget_ended()

    def place_of(self, worker: Worker) -> Six:
        """In the world, or as `expected`."""
        if worker.number not in self._workers.world:
            return self.expected(worker)
        return places_of(seats_of(self._workers.members()))[self._workers.world.index(worker.number)]

    def expected(self, worker: Worker) -> Six:
        """The place that a newcomer has if all who are there are in the next world; a spare: the last one of
        its host, or of the world.
        """
        workers = self._workers
        coming = self.in_order([each for each in workers.living() if workers.usable(each)])
        if worker not in coming:
            here = [number for number, each in enumerate(coming) if each.host == worker.host]
            place = here[-1] if here else max(0, len(coming) - 1)
            coming[place : place + 1] = [worker]
        return places_of(seats_of(coming))[coming.index(worker)]

    def _with_place(self, action: Action) -> Action:
        """A start with the place that is expected when all have come: known when all are there."""
        if not isinstance(action, Start) or action.worker in self._workers.world:
            return action
        worker = self._workers[action.worker]
        place = self.expected(worker)
        worker.rank = place[0]
        return Start(action.worker, action.host, action.slot, place)


def seats_of(workers: Sequence[Worker]) -> list[Seat]:
    """Slots of the given workers, in their order."""
    return [Seat(worker.host, worker.index) for worker in workers]
