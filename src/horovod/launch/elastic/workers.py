"""The workers of an elastic job, as its driver knows them, and which of them are the world."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from horovod.bootstrap.place.starter import Word
from horovod.bootstrap.store.membership import Answer, Assigned, Dismissed, Report, Six
from horovod.launch.driver.actions import Action, End, Log, Start, Tell
from horovod.launch.driver.causes import lost_by
from horovod.launch.elastic.hosts import Hosts, named
from horovod.launch.elastic.rules import Rules

__all__ = ["END_S", "ON_THE_WAY", "SPEAK_S", "WorkerState", "Worker", "Workers", "hosts_of", "ranks_of"]

END_S = 10.0
"""A worker that was dismissed, or whose script has failed, has so long to end by itself."""

SPEAK_S = 0.3
"""A rank that was silent for as long as it may be, and that goes on just then, reports within so long."""

_MOST_NAMED = 4
"""Ranks in one sentence."""

_ARRIVED = Report(ready=False)


class WorkerState(Enum):
    """Stages in the life of a worker."""

    STARTING = "starting"  # has not been heard of
    PREPARING = "preparing"  # a newcomer that has arrived
    WAITING = "waiting"  # for an answer that places it
    PLACED = "in the world"
    ENDED = "ended"


ON_THE_WAY = (WorkerState.STARTING, WorkerState.PREPARING)


@dataclass(eq=False)
class Worker:
    """A process in a slot (``index`` of ``host``); its number is never used again."""

    number: int
    host: str
    index: int
    state: WorkerState = WorkerState.STARTING
    report: int = -1
    """The number of its last report; ``said`` what it was."""
    came: bool = False
    """True once it has reported, to this driver or one before."""
    said: Report = _ARRIVED
    since: float = 0.0
    rank: int = 0
    exit_code: int | None = None
    lost_last: int | None = None
    """The rank of its world that it had lost when it ended, as it said."""
    ended_as: int = 0
    """Number of workers that had ended before it."""
    promised: Assigned | None = None
    """Place in the world that it was started for, until it has arrived."""
    told_to_end: bool = False
    end_at: float = math.inf
    """When it is ended, if it has not by then."""
    killed: bool = False
    """True while it is being ended because it does nothing."""
    failed_at: float | None = None
    """When its script failed, as it said, or it was killed: its process may take longer to end.
    ``failed_why``: how the script did.
    """
    failed_why: str = ""
    exiting: bool = False
    """Counted as ended, although its process has not ended yet."""
    stopped_at: float | None = None
    """A signal has stopped it: it does nothing until it is continued."""

    @property
    def alive(self) -> bool:
        return self.state is not WorkerState.ENDED

    @property
    def failed(self) -> bool:
        return self.state is WorkerState.ENDED and self.exit_code != 0 and not self.told_to_end

    @property
    def never_came(self) -> bool:
        """True if it has ended well without ever calling ``init()``."""
        return self.state is WorkerState.ENDED and self.exit_code == 0 and not self.came

    @property
    def stopped(self) -> bool:
        return self.alive and self.stopped_at is not None

    @property
    def lost(self) -> int | None:
        """The rank of the present world that this member has lost, if it has said so and left that world."""
        if self.state is WorkerState.WAITING:
            return self.said.because
        return self.lost_last if self.state is WorkerState.ENDED else None

    @property
    def lost_silent(self) -> int | None:
        """Rank that gave no sign of life, if there is one: others have waited for a sign already."""
        if self.state is WorkerState.WAITING:
            return lost_by(Word(False, self.said.why, self.said.because))
        return self.lost

    @property
    def reported(self) -> bool:
        """A member of which nothing more is awaited before the next world."""
        return self.state in (WorkerState.WAITING, WorkerState.ENDED)


class Workers:
    """
    Args:
        rules: sizes and limits.
        hosts: which slots there are.

    Attributes:
        actions: what is to be done, in order; who does it takes the list away.
        world: numbers of the workers of the present world, by rank.
        round: of that world.
        begun: somebody has said to have the state of the training.
        lingering: slots of workers that have ended and are not gone, by number.
        last_failure: which worker failed last, and how; empty: none has.
    """

    def __init__(self, rules: Rules, hosts: Hosts) -> None:
        self.rules = rules
        self.hosts = hosts
        self.actions: list[Action] = []
        self.world: list[int] = []
        self.round = 0
        self.begun = False
        self.lingering: dict[int, tuple[str, int]] = {}
        self.last_failure = ""
        self.next_number = 0
        self._by_number: dict[int, Worker] = {}
        self._ends = 0

    # -- who is there ---------------------------------------------------------------------------------------

    def __getitem__(self, number: int) -> Worker:
        return self._by_number[number]

    def get(self, number: int) -> Worker | None:
        """None: there is none with this number, or none any more."""
        return self._by_number.get(number)

    def known(self) -> list[Worker]:
        """Workers that live, and those of the world that have ended."""
        return list(self._by_number.values())

    def living(self) -> list[Worker]:
        return [worker for worker in self._by_number.values() if worker.alive]

    def members(self) -> list[Worker]:
        """Members of the world, by rank."""
        return [self._by_number[number] for number in self.world]

    def has_state(self, worker: Worker) -> bool:
        """True if a worker can give others the state: a member, unless it has left a world in which it did
        not get the state. Before anybody has said to have it, all begin with the same.
        """
        said = worker.said.synced or worker.state is WorkerState.PLACED or not self.begun
        return worker.number in self.world and said

    def usable(self, worker: Worker) -> bool:
        """True if a worker's slot is part of the job, and it was not told to end."""
        return not worker.told_to_end and worker.index in self.hosts.slots(worker.host)

    # -- what becomes of them -------------------------------------------------------------------------------

    def start(self, worker: Worker, place: Six) -> None:
        self.next_number = max(self.next_number, worker.number + 1)
        self._by_number[worker.number] = worker
        worker.rank = place[0]
        self.actions.append(Start(worker.number, worker.host, worker.index, place))

    def tell(self, worker: Worker, answer: Answer) -> None:
        """Answer its last report."""
        self.actions.append(Tell(worker.number, worker.report, answer))

    def dismiss(self, worker: Worker, why: str, now: float) -> None:
        """Answer that it is to end by itself."""
        worker.told_to_end, worker.end_at = True, now + END_S
        self.tell(worker, Dismissed(why))

    def end(self, workers: Sequence[Worker], why: str) -> None:
        if not workers:
            return
        for worker in workers:
            worker.told_to_end, worker.end_at = True, math.inf
        numbers = tuple(worker.number for worker in workers)
        slots = ", ".join(f"{worker.host}[{worker.index}]" for worker in workers)
        self.log("ending", f"ending {slots}: {why}", workers=list(numbers))
        self.actions.append(End(numbers))

    def end_overdue(self, now: float) -> None:
        overdue = [w for w in self.known() if (w.alive or w.exiting) and now >= w.end_at]
        self.end(overdue, "it was to end, and has not")

    def ended(self, worker: Worker, exit_code: int | None, now: float) -> None:
        """Note an end: by itself, with its host, or of a worker whose process is `exiting` (None)."""
        worker.state, worker.exit_code, worker.since, worker.end_at = (
            WorkerState.ENDED,
            exit_code,
            now,
            math.inf,
        )
        worker.ended_as, self._ends = self._ends, self._ends + 1
        if exit_code is None and not worker.exiting:
            self.lingering.pop(worker.number, None)  # what the host had is not known, and not to be told
        else:
            self.lingering[worker.number] = (worker.host, worker.index)

    def begin_again(self) -> None:
        """Another driver goes on: nobody has heard the answers that were not given, so who waits for one
        reports again. Who is to end is told again.
        """
        self.actions = []
        for worker in self.living():
            worker.report = -1
            worker.killed = False
            if worker.state is WorkerState.WAITING and worker.number not in self.world:
                worker.state = WorkerState.PREPARING
            elif worker.state is WorkerState.WAITING:
                worker.state = WorkerState.PLACED if self.round else WorkerState.STARTING
        again = [worker for worker in self.living() if worker.told_to_end]
        if again:
            self.end(again, "it was to end before the driver was started again")

    def kill(self, worker: Worker, why: str, now: float) -> None:
        """End one that does nothing; ``why``: a sentence. If its host is off, nobody hears of its end."""
        worker.killed = True
        worker.failed_at = now if worker.failed_at is None else worker.failed_at
        self.log("killed", why, rank=worker.rank, host=worker.host)
        self.actions.append(End((worker.number,), kill=True))

    def forget_ended(self) -> None:
        """Forget workers that have ended and are not in the world."""
        for worker in self.known():
            if not worker.alive and worker.number not in self.world:
                del self._by_number[worker.number]

    def log(self, event: str, text: str, **fields: object) -> None:
        """Something happened that people want to know."""
        self.actions.append(Log(event, text, fields))


def hosts_of(workers: Sequence[Worker]) -> str:
    """``a:2,b:1``."""
    return named(Counter(worker.host for worker in workers))


def ranks_of(workers: Sequence[Worker]) -> str:
    """``rank 1 on b``, ``ranks 1, 2 on a, b``."""
    ranks = ", ".join(str(worker.rank) for worker in workers[:_MOST_NAMED])
    hosts = ", ".join(dict.fromkeys(worker.host for worker in workers[:_MOST_NAMED]))
    more = f" and {len(workers) - _MOST_NAMED} more" if len(workers) > _MOST_NAMED else ""
    return f"{'rank' if len(workers) == 1 else 'ranks'} {ranks} on {hosts}{more}"
