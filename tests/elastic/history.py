"""Random histories: faults and changes of the hosts, drawn from a seed, until there were so many.

What happens next is drawn: a fault at a point, one at any moment, other hosts, trouble with discovery. What
no job can survive is left out: somebody who has the state of the training stays, with the slot. The course in
time differs from run to run, so a failure tells the seed and what has happened.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from tests.elastic.job import ElasticJob, Point

__all__ = ["HOSTS", "OPTIONS", "RANKS", "History"]

HOSTS = {"localhost": 2, "127.0.0.1": 2}
RANKS = 3
OPTIONS = (
    "--max-np", str(RANKS), "--spares", "1", "--failure-domain", "slot",
    "--blacklist-cooldown-range", "1", "1",
)  # fmt: skip

_OF_NEWCOMERS = ("import", "init", "prologue")
_OF_MEMBERS = (
    "forming", "joined", "sync", "synced", "step", "submitted", "commit", "saved", "epoch", "interrupted",
    "leaving", "left", "reset",
)  # fmt: skip
_TROUBLE = ("echo broken >&2; exit 3", "echo a:b:c", "echo two words", "exit 0", "sleep 1.5", "kill -9 $$")
_NO_STEP_S = 40.0
_PATIENCE = 100
"""Points that a fault waits for its own: some come only after others."""


class _Planned(NamedTuple):
    do: str
    point: str
    rank: int


class History:
    """
    Args:
        job: made with `HOSTS` and `OPTIONS`; it trains until it is told to stop.
        seed: of everything that is drawn.
        events: how many are to happen.

    Attributes:
        counts: what has happened, by its kind.
        recoveries_s: from the death of a member to the first step of the next world.
    """

    def __init__(self, job: ElasticJob, seed: int, events: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.recoveries_s: list[float] = []
        self._job = job
        self._events = events
        self._random = random.Random(seed)
        self._planned: _Planned | None = None
        self._patience = 0
        self._next_at = 0.0
        self._hosts_at = 0.0
        self._held_until: dict[int, float] = {}
        self._stopped_until: dict[int, float] = {}
        slots = [(host, slot) for host, count in HOSTS.items() for slot in range(count)]
        self._slots = dict(enumerate(slots[:RANKS]))
        self._slots_known = 0
        self._has_state: set[int] = set()
        self._doomed: set[int] = set()
        self._committed = 0
        self._step_at = time.monotonic()
        self._died: tuple[float, int] | None = None
        job.policy = self._at
        job.quiet = frozenset({"start", *_OF_NEWCOMERS, *_OF_MEMBERS})

    def run(self) -> None:
        """Until all of it has happened, and the job has ended.

        Raises:
            AssertionError: a committed step was lost, or nobody makes a step any more.
        """
        job = self._job
        while job.status is None and not job.been("wrong"):
            self._let_go(time.monotonic())
            if job.worlds and self._planned is None and self._left:
                self._draw(time.monotonic())
            job.poll(0.05)
            if time.monotonic() > self._step_at + _NO_STEP_S and not job.been("done"):
                job.fail(f"{self}: no step for {_NO_STEP_S:g} s")

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.counts.total()} of {self._events} events: {dict(self.counts)}"

    @property
    def _left(self) -> bool:
        return self.counts.total() < self._events

    # -- what happens at any moment -------------------------------------------------------------------------

    def _draw(self, now: float) -> None:
        if now < self._next_at:
            return
        self._next_at = now + self._random.choice((0.0, 0.02, 0.1))
        draw = self._random.random()
        if draw < 0.6:
            do = self._random.choice(("kill", "kill", "raise", "hold", "hold"))
            point = self._random.choice(_OF_NEWCOMERS if self._random.random() < 0.2 else _OF_MEMBERS)
            self._planned, self._patience = _Planned(do, point, self._random.randrange(RANKS)), _PATIENCE
        elif draw < 0.78:
            with suppress(ProcessLookupError):  # it has ended, and we have not been told yet
                self._signal(now)
        elif draw < 0.92:
            self._change_hosts(now)
        else:
            self._trouble_discovery(now)

    def _signal(self, now: float) -> None:
        worker = self._random.choice(self._job.living or [-1])
        if worker < 0:
            return
        if self._random.random() < 0.6:
            self._job.signal(worker, signal.SIGSTOP)
            self._stopped_until[worker] = now + self._random.uniform(0.05, 0.5)
            self.counts["stopped for a while"] += 1
        elif self._spare(worker):
            self._job.signal(worker, signal.SIGKILL)
            self._dies(worker, now)
            self.counts["killed at any moment"] += 1

    def _change_hosts(self, now: float) -> None:
        """Not before the driver has heard of the last change: who stays must be so for it, too."""
        if now < self._hosts_at or self._known_hosts != self._job.hosts:
            return
        hosts = {name: self._random.choice((0, 1, 2, 2)) for name in HOSTS}
        hosts = {name: slots for name, slots in hosts.items() if slots}
        if hosts != self._job.hosts and any(self._stays(worker, hosts) for worker in self._has_state):
            self._job.offer(hosts)
            self._hosts_at = now + 1.1  # discovery is asked each second
            self.counts["other hosts"] += 1

    def _trouble_discovery(self, now: float) -> None:
        """Once; then it says what it said before."""
        if now < self._hosts_at:
            return
        self._hosts_at = now + 1.1
        once = self._job.folder / f"trouble-{self.counts.total()}"
        trouble = self._random.choice(_TROUBLE)
        self._job.discovery(f"if mkdir {once} 2>/dev/null; then {trouble}; fi\n{self._job.hosts_script}")
        self.counts["trouble with discovery"] += 1

    def _let_go(self, now: float) -> None:
        for worker, until in list(self._held_until.items()):
            if now >= until:
                del self._held_until[worker]
                if worker in self._job.held:
                    self._job.release(worker)
        for worker, until in list(self._stopped_until.items()):
            if now >= until:
                del self._stopped_until[worker]
                if worker in self._job.living:
                    self._job.signal(worker, signal.SIGCONT)

    # -- what happens at points -----------------------------------------------------------------------------

    def _at(self, point: Point) -> str:
        self._learn(point)
        planned = self._planned
        if planned is not None and self._left:
            if self._is_at(point, planned):
                if planned.do == "hold":
                    self._held_until[point.worker] = time.monotonic() + self._random.uniform(0.05, 0.6)
                elif not self._spare(point.worker):
                    return "go"
                else:
                    self._dies(point.worker, time.monotonic())
                self._planned = None
                self.counts[f"{planned.do} at {planned.point}"] += 1
                return planned.do
            self._patience -= 1
            if self._patience <= 0:
                self._planned = None
        return "last" if point.name == "step" and not self._left else "go"

    def _is_at(self, point: Point, planned: _Planned) -> bool:
        if point.name != planned.point:
            return False
        world = self._job.world
        return point.name in _OF_NEWCOMERS or world.get(planned.rank % max(1, len(world))) == point.worker

    def _learn(self, point: Point) -> None:
        """What is known of the job from where a worker is."""
        match point.name:
            case "step":
                self._step_at = time.monotonic()
                if self._died is not None and point["round"] > self._died[1]:
                    self.recoveries_s.append(point.time - self._died[0])
                    self._died = None
            case "synced":
                self._has_state.add(point.worker)
                if point["step"] < self._committed - 1:
                    self._job.fail(f"{self}: step {self._committed} was committed, and {point} begins there")
            case "saved":
                self._committed = max(self._committed, point["step"])
            case _:
                pass

    # -- who can be lost ------------------------------------------------------------------------------------

    def _spare(self, worker: int) -> bool:
        """Whether training can go on without it."""
        hosts = self._job.hosts
        return any(each != worker and self._stays(each, hosts) for each in self._has_state)

    @property
    def _known_hosts(self) -> dict[str, int]:
        """Those that the driver has heard of last."""
        heard = self._job.happened("hosts")
        return dict(heard[-1]["hosts"]) if heard else {}

    def _stays(self, worker: int, hosts: dict[str, int]) -> bool:
        """Whether nothing ends it, neither before the driver hears of these hosts nor after."""
        newcomers = self._job.happened("newcomer")
        for event in newcomers[self._slots_known :]:
            self._slots[event["worker"]] = (event["host"], event["slot"])
        self._slots_known = len(newcomers)
        host, slot = self._slots[worker]
        return (
            slot < min(hosts.get(host, 0), self._known_hosts.get(host, 0))
            and worker not in self._doomed
            and worker in self._job.living
            and worker in self._job.world.values()
        )

    def _dies(self, worker: int, now: float) -> None:
        self._doomed.add(worker)
        if worker in self._job.world.values() and self._died is None:
            self._died = now, self._job.worlds[-1]["round"]
