"""The driver of an elastic job: decides which workers run, and which of them are a world.

A state machine without clocks, sockets or threads: what happens is told with the time, what is to be done is
left in ``actions``. A test plays thousands of histories in one thread.

Words: a *worker* is a process with a number that is never used again. A *world* is the workers that train
together, numbered by *round*. A *reset* is the step from one world to the next: members of the old one report
that they are ready, or have ended; when the last one has, the next world is formed of those that are left and
of newcomers that are ready. A *newcomer* is started beside a running world. It prepares by itself, reports,
and waits; so nobody waits for it, unless there are fewer than ``least`` workers without it.

    world 0 (being started) ──all reported──> world 1 ──all reported──> world 2 …
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from horovod.bootstrap.membership import (
    Answer,
    Dismissed,
    Expected,
    HostUpdateResult,
    Leaving,
    Placed,
    Report,
    Resumed,
    Six,
)
from horovod.launch.elastic.actions import (
    Action,
    Drop,
    End,
    Log,
    Notify,
    Over,
    Reach,
    Spoil,
    Start,
    Tell,
    WorkerEnd,
)
from horovod.launch.elastic.hosts import Hosts
from horovod.launch.elastic.places import Seat, places_of
from horovod.launch.elastic.rules import Rules
from horovod.launch.phrases import counted
from horovod.launch.supervision.supervisor import describe_exit

__all__ = ["Driver", "Phase"]

_RETRY_S = (2.0, 60.0)
"""A host that cannot be reached is tried again: the first pause, which doubles, and the longest one."""

_AGAIN_S = (5.0, 60.0)
"""Rank 0 is told of a change again after so long: the first pause, which doubles, and the longest one."""

_PROGRESS_S = 30.0
_END_S = 10.0
"""A worker that was dismissed has so long to end by itself."""

_SPOILED_ROUNDS = 2
"""Worlds in a row that could not be formed, before the host that most blame is left out."""

_HOPELESS_ROUNDS = 6

_FRUITLESS_ROUNDS = 12
"""Worlds in a row that have failed within `_FRUITLESS_S`, though no rank has ended: an error of the script,
which every further world repeats.
"""

_FRUITLESS_S = 60.0


class Phase(Enum):
    """What is awaited."""

    SLOTS = "slots for the first world"
    FIRST = "the workers of the first world"
    TRAINING = "nothing"
    RESET = "members of the world that has ended"
    SHORT = "enough workers for the next world"
    ENDING = "the end of all workers"
    OVER = "nothing any more"


class _State(Enum):
    STARTING = "starting"  # has not been heard of
    PREPARING = "preparing"  # a newcomer that has arrived
    WAITING = "waiting"  # for an answer that places it
    PLACED = "in the world"
    ENDED = "ended"


_ARRIVED = Report(ready=False)
_ON_THE_WAY = (_State.STARTING, _State.PREPARING)


@dataclass(eq=False)
class _Worker:
    number: int
    host: str
    index: int
    state: _State = _State.STARTING
    report: int = -1
    """The number of its last report; ``said`` what it was."""
    said: Report = _ARRIVED
    since: float = 0.0
    rank: int = 0
    exit_code: int | None = None
    ended_as: int = 0
    """How many had ended before it."""
    promised: Placed | None = None
    """It was started as a member of this world, and has not arrived yet."""
    told_to_end: bool = False
    end_at: float = math.inf
    """When it is ended, if it has not by then."""

    @property
    def alive(self) -> bool:
        return self.state is not _State.ENDED

    @property
    def failed(self) -> bool:
        return self.state is _State.ENDED and self.exit_code != 0 and not self.told_to_end


@dataclass
class _Reach:
    """How it stands with the connection to a host."""

    reached: bool = False
    tries: int = 0
    again_at: float = -math.inf
    trying: bool = False
    told: str = ""


class Driver:
    """
    Args:
        rules: sizes and limits.
        hosts: the order of hosts, and the blacklist.
        now: the time, in seconds, as all later ones.
    """

    def __init__(self, rules: Rules, hosts: Hosts, now: float) -> None:
        self.rules = rules
        self.actions: list[Action] = []
        self.phase = Phase.SLOTS
        self.round = 0
        self.resets = 0
        self._hosts = hosts
        self._reaches: dict[str, _Reach] = {}
        self._workers: dict[int, _Worker] = {}
        self._world: list[int] = []
        self._lingering: dict[int, tuple[str, int]] = {}  # slots of workers that have ended and are not gone
        self._next_worker = 0
        self._ends = 0
        self._news = 0
        self._told_change: tuple[frozenset[int], frozenset[int]] | None = None
        self._told_slots: frozenset[Seat] = frozenset()
        self._waits_until = now + rules.slots_wait_s
        self._announce_at = math.inf
        self._again_s = 0.0
        self._reset_began = 0.0
        self._progress_at = now + _PROGRESS_S
        self._lost_at: dict[int, float] = {}
        self._spoiled = 0
        self._fruitless = 0
        self._formed_at = now
        self._begun = False
        self._discovered_once = False
        self._error = ""
        self._failed: WorkerEnd | None = None

    # -- what happens ---------------------------------------------------------------------------------------

    def discovered(self, found: Mapping[str, int], now: float) -> None:
        """Discovery has found these hosts."""
        self._discovered_once = True
        before = dict(self._hosts.discovered)
        kind = self._hosts.update(found)
        if kind:
            self._log(
                "hosts",
                f"hosts: {_named(found)}" + (f" (before: {_named(before)})" if before else ""),
                kind=kind.name or "mixed",
                hosts=dict(found),
            )
        self._settle(now)

    def discovery_failed(self, why: str, now: float) -> None:
        """Discovery failed: at the first time that ends the job, later the hosts stay what they were."""
        if self._discovered_once:
            self._log("discovery_failed", f"{why} The hosts stay {_named(self._hosts.discovered)}.", why=why)
        else:
            self._fail(why, now)
        self._settle(now)

    def reached(self, host: str, now: float) -> None:
        """Workers can be started on a host."""
        reach = self._reaches.setdefault(host, _Reach())
        reach.reached, reach.trying, reach.tries = True, False, 0
        self._settle(now)

    def host_lost(self, host: str, why: str, now: float) -> None:
        """A host cannot be reached, or its connection has ended: its workers count as failed."""
        reach = self._reaches.setdefault(host, _Reach())
        was_reached = reach.reached
        reach.reached, reach.trying = False, False
        reach.tries += 1
        first_s, longest_s = _RETRY_S
        reach.again_at = now + min(longest_s, first_s * 2 ** min(reach.tries - 1, 10))
        running = [worker for worker in self._workers.values() if worker.host == host and worker.alive]
        if was_reached or why != reach.told:
            what = "was lost" if was_reached else "cannot be reached"
            self._log("host_lost", f"host {host} {what}: {why}", host=host, why=why)
        reach.told = why
        for worker in running:
            self._ended(worker, None, now)
        self._lingering = {number: slot for number, slot in self._lingering.items() if slot[0] != host}
        self._settle(now)

    def said(self, number: int, report_number: int, report: Report, now: float) -> None:
        """A worker has reported."""
        worker = self._workers.get(number)
        if worker is None or not worker.alive or report_number <= worker.report:
            return
        worker.report, worker.said, worker.since = report_number, report, now
        self._begun = self._begun or report.synced
        if not report.ready and worker.state is _State.PLACED:
            anew = [member for member in self._members() if member.alive and member.said.ready]
            # A member has arrived again: another program runs there. When all have, it begins anew.
            self._begun = self._begun and bool(anew)
        promised, worker.promised = worker.promised, None
        if self.phase in (Phase.ENDING, Phase.OVER) or worker.told_to_end:
            self._dismiss(worker, "the job has ended" if not worker.told_to_end else "its slot is gone", now)
        elif promised is not None and self.phase is Phase.TRAINING:
            worker.state = _State.PLACED
            self._tell(worker, promised)
        elif not report.ready and number not in self._world:
            worker.state = _State.PREPARING
            place = self._expected(worker)
            worker.rank = place[0]
            self._tell(worker, Expected(place, self.round))
        else:
            worker.state = _State.WAITING
        self._settle(now)

    def leaving(self, number: int, leaving: Leaving, now: float) -> None:
        """A worker, or its whole host, will be taken away: the next world does without."""
        worker = self._workers.get(number)
        if worker is None or not worker.alive or worker.told_to_end:
            return
        slots = range(self._hosts.discovered.get(worker.host, 0)) if leaving.host else [worker.index]
        if set(slots) & set(self._hosts.slots(worker.host)):
            what = f"host {worker.host}" if leaving.host else f"rank {worker.rank} on {worker.host}"
            self._hosts.drain(worker.host, slots, now)
            self._log(
                "leaving", f"{what} will be taken away: {leaving.why}", host=worker.host,
                slot=None if leaving.host else worker.index, why=leaving.why,
            )  # fmt: skip
        self._settle(now)

    def resumed(self, number: int, resumed: Resumed) -> None:
        """Rank 0 trains again after a reset."""
        if resumed.round == self.round and number in self._world:
            phases = ", ".join(f"{name} {1000 * took_s:.0f}" for name, took_s in resumed.took.items())
            total_s = sum(resumed.took.values())
            self._log(
                "resumed",
                f"world {resumed.round} trains after a reset of {total_s:.2f} s (ms: {phases})",
                round=resumed.round, took=dict(resumed.took),
            )  # fmt: skip

    def exited(self, number: int, exit_code: int, now: float, why: str = "") -> None:
        """A worker has ended; `exit_code` is negative for a signal. ``why``: what its script said last."""
        worker = self._workers.get(number)
        if worker is not None and worker.alive:
            self._ended(worker, exit_code, now, why)
        self._settle(now)

    def gone(self, number: int, now: float) -> None:
        """Nothing that a worker has started runs any more: its slot, and the device there, are free."""
        worker = self._workers.get(number)
        if worker is not None and worker.alive:
            self._ended(worker, None, now)  # even SIGKILL does not end it
        self._lingering.pop(number, None)
        self._settle(now)

    def tick(self, now: float) -> None:
        """Time has passed: see `due`."""
        self._settle(now)

    def stop(self, why: str, now: float) -> None:
        """The job is to end now; it has failed if there is a reason."""
        if why:
            self._fail(why, now)
        else:
            self._close(now, "the job is to end")
        self._settle(now)

    def announced(self) -> None:
        """Somebody else has made news of the hosts: the next world must not take them for later ones."""
        self._news += 1

    def due(self) -> float:
        """When `tick` has something to do; ``math.inf``: not before something else happens."""
        if self.phase is Phase.OVER:
            return math.inf
        times = [worker.end_at for worker in self._workers.values()]
        if self.phase is Phase.ENDING:
            return min(times, default=math.inf)
        times.append(self._hosts.next_readmission())
        times += [
            reach.again_at
            for host in self._hosts.names
            if (reach := self._reaches.get(host)) is not None and not (reach.reached or reach.trying)
        ]
        if self.phase in (Phase.SLOTS, Phase.SHORT):
            times += [self._waits_until, self._progress_at]
        if self.phase in (Phase.FIRST, Phase.RESET):
            times += [self._progress_at, *(at + self.rules.lost_s for at in self._lost_at.values())]
            times.append(self._enough_at())
        if self.phase is Phase.TRAINING:
            times.append(self._announce_at)
        return min(times, default=math.inf)

    # -- what people see ------------------------------------------------------------------------------------

    def describe(self, now: float) -> str:
        """One line about what is under way."""
        alive = [worker for worker in self._workers.values() if worker.alive]
        starting = sum(w.state in (_State.STARTING, _State.PREPARING) for w in alive)
        beside = f", {counted(starting, 'worker')} starting" if starting else ""
        match self.phase:
            case Phase.SLOTS | Phase.SHORT:
                if self.phase is Phase.SHORT and starting:
                    ready = counted(len(self._candidates()), "rank")
                    coming = counted(starting, "worker")
                    return f"{ready} ready, {self.rules.least} needed: waiting for {coming} to be ready"
                left_s = max(0, int(self._waits_until - now))
                return f"{self._shortage()}; giving up in {left_s} s"
            case Phase.FIRST:
                return f"starting {counted(len(self._world), 'rank')}"
            case Phase.RESET:
                missing = [self._workers[n] for n in self._world if self._workers[n].state is _State.PLACED]
                names = ", ".join(f"{w.rank} on {w.host}" for w in missing[:4])
                return f"reset {self.resets + 1}: waiting for rank {names}{beside}"
            case Phase.TRAINING:
                return f"{counted(len(self._world), 'rank')} train (world {self.round}){beside}"
        return f"ending {counted(len(alive), 'worker')}"

    def rank_of(self, number: int) -> int:
        """The last rank of a worker, or the one that it is expected to have."""
        return self._workers[number].rank

    def host_of(self, number: int) -> str:
        return self._workers[number].host

    @property
    def error(self) -> str:
        """Why the job has failed, if not because of a worker; empty: it has not."""
        return self._error

    @property
    def world(self) -> tuple[int, ...]:
        """The workers of the present world, by rank."""
        return tuple(self._world)

    def seats(self) -> list[Seat]:
        """The slots of the present world, by rank."""
        return [Seat(worker.host, worker.index) for worker in self._members()]

    # -- the next step --------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Do all that follows from what has happened."""
        if self.phase is Phase.OVER:
            return
        self._end_overdue(now)
        if self.phase is not Phase.ENDING:
            for host in self._hosts.readmit(now):
                self._log("readmitted", f"host {host} may be used again: its cool-down is over", host=host)
            self._connect(now)
        if self.phase is Phase.SLOTS:
            self._begin(now)
        if self.phase is Phase.TRAINING and any(self._reported(number) for number in self._world):
            self.phase, self._reset_began = Phase.RESET, now
            self._progress_at = now + _PROGRESS_S
        if self.phase in (Phase.FIRST, Phase.RESET):
            self._look_for_lost(now)
            self._decide(now)
        if self.phase is Phase.SHORT:
            self._form_or_wait(now)
        if self.phase is Phase.TRAINING:
            self._staff(now)
            if self.rules.at_once:
                self._announce_slots()
            else:
                self._announce(now)
        if self.phase is Phase.ENDING and not self._living():
            self.phase = Phase.OVER
            self.actions.append(Over(self._error, self._failed, tuple(self._world)))

    def _connect(self, now: float) -> None:
        """Reach the hosts that are wanted, and drop those that are not."""
        for host in self._hosts.names:
            reach = self._reaches.setdefault(host, _Reach())
            if not (reach.reached or reach.trying) and now >= reach.again_at:
                reach.trying = True
                self.actions.append(Reach(host))
        for host in [host for host in self._reaches if host not in self._hosts.names]:
            here = [worker.host for worker in self._living()] + [slot[0] for slot in self._lingering.values()]
            if host not in here:
                del self._reaches[host]
                self.actions.append(Drop(host))

    def _begin(self, now: float) -> None:
        """Start the workers of the first world when there are enough slots."""
        slots = self._free_slots()
        trying = any(self._reaches[host].trying for host in self._hosts.names)
        full = self.rules.most is not None and len(slots) >= self.rules.most
        if len(slots) < self.rules.processes or (trying and not full):
            self._wait_for_slots(now)
            return
        members = slots[: self.rules.most]
        places = places_of([Seat(host, index) for host, index in members])
        self._world = [
            self._start(host, index, place) for (host, index), place in zip(members, places, strict=True)
        ]
        self.phase, self._progress_at = Phase.FIRST, now + _PROGRESS_S
        self._log("starting", f"starting {counted(len(members), 'rank')} on {_hosts_of(self._members())}")

    def _wait_for_slots(self, now: float) -> None:
        if now >= self._waits_until or self._in_vain():
            waited = "" if self._in_vain() else f", for {self.rules.slots_wait_s:g} s (--elastic-timeout)"
            self._fail(
                "Timed out waiting for minimum number of slots to become available: "
                f"{self._shortage()}{waited}. {self._why_short(now)}".rstrip(),
                now,
            )
        elif now >= self._progress_at:
            self._progress_at = now + _PROGRESS_S
            self._log("waiting", f"{self.describe(now)}. {self._why_short(now)}".rstrip())

    def _in_vain(self) -> bool:
        """Whether no further slot can come: the hosts are fixed, and those that are left out stay so."""
        return (
            self.rules.fixed_hosts
            and self._hosts.total() < self._needed()
            and self._hosts.next_readmission() == math.inf
            and self._discovered_once
        )

    def _decide(self, now: float) -> None:
        """When all members of the old world have reported: go on, or end."""
        members = self._members()
        if now < self._enough_at() and not all(self._reported(member.number) for member in members):
            if now >= self._progress_at:
                self._progress_at = now + _PROGRESS_S
                self._log("waiting", self.describe(now))
            return
        failures = [member for member in members if member.failed]
        if any(member.state is _State.ENDED and member.exit_code == 0 for member in members):
            self._finish(failures, now)
            return
        waiting = [member for member in members if member.state is _State.WAITING]
        if not waiting:
            self._finish(failures, now)
            return
        left = [member for member in waiting if member.said.ready]
        spoiled = bool(left) and self.round > 0 and not any(member.said.formed for member in left)
        self._spoiled = self._spoiled + 1 if spoiled else 0
        fruitless = left and all(m.said.failed for m in left) and not failures and len(left) == len(members)
        short = now - self._formed_at < _FRUITLESS_S
        self._fruitless = self._fruitless + 1 if fruitless and short and self.round else 0
        if self._fruitless >= _FRUITLESS_ROUNDS:
            why = left[0].said.why or "none is known"
            self._fail(
                f"{self._fruitless} worlds in a row have failed within {_FRUITLESS_S:.0f} s, though no rank "
                f"has ended: a further one would, too. The last reason: {why}",
                now,
            )
            return
        for failure in failures:
            self._leave_out(failure, now)
        self._blame(waiting, failures, now)
        if all(self._is_out(member) for member in waiting):
            self._finish(failures, now)
            return
        if self._spoiled >= _HOPELESS_ROUNDS:
            why = next((member.said.why for member in waiting if member.said.why), "no reason is known")
            self._fail(f"{self._spoiled} worlds in a row could not be formed. The last reason: {why}", now)
            return
        if self.round > 0 or failures:
            limit = self.rules.reset_limit
            if limit is not None and self.resets >= limit:
                self._fail(
                    f"The world has changed {counted(self.resets, 'time')} and would change again: exceeded "
                    f"limit: {limit} (--reset-limit).",
                    now,
                )
                return
            self.resets += 1
        self.phase = Phase.SHORT
        self._waits_until = now + self.rules.slots_wait_s
        self._progress_at = now + _PROGRESS_S

    def _enough_at(self) -> float:
        """When members that have not reported are no longer waited for: one has succeeded some time ago."""
        if self.rules.success_s is None:
            return math.inf
        ended = [m.since for m in self._members() if m.state is _State.ENDED and m.exit_code == 0]
        return min(ended, default=math.inf) + self.rules.success_s

    def _form_or_wait(self, now: float) -> None:
        """Form the next world of those that are ready, if they are enough."""
        able = [each for each in self._living() if each.state is _State.WAITING and self._has_state(each)]
        if able and not self._hosts.discovered:
            self._wait_for_slots(now)  # discovery says nothing, which need not mean that all hosts are gone
            return
        if not any(self._usable(worker) for worker in able):
            self._fail(
                "No hosts from previous set remaining: nobody is left who has the state of the training.", now
            )
            return
        members = self._candidates()
        if self.rules.at_once:
            members = self._in_order([*members, *self._fresh()])
        if len(members) >= self.rules.least:
            self._form(members, now)
            self._staff(now)
            return
        self._staff(now)
        coming = [worker for worker in self._living() if worker.state in _ON_THE_WAY and self._usable(worker)]
        if len(members) + len(coming) < self.rules.least:
            self._wait_for_slots(now)
            return
        # There is room for enough. How long a worker takes until it is ready is up to the script.
        self._waits_until = now + self.rules.slots_wait_s
        if now >= self._progress_at:
            self._progress_at = now + _PROGRESS_S
            self._log("waiting", self.describe(now))

    def _form(self, members: Sequence[_Worker], now: float) -> None:
        before, old_round = list(self._world), self.round
        for member in self._members():
            if member.state is _State.WAITING and member not in members:
                self._dismiss(member, "its slot is not part of the job any more", now)
        in_step = all(
            member.number in before and member.said.formed and not member.said.failed for member in members
        )
        self.round += 1
        seats = [Seat(worker.host, worker.index) for worker in members]
        for worker, place in zip(members, places_of(seats), strict=True):
            placed = Placed(self.round, place, self._news, in_step)
            if worker.state is _State.STARTING:
                worker.promised = placed
                self._launch(worker, place)
            else:
                worker.state, worker.rank = _State.PLACED, place[0]
                self._tell(worker, placed)
        self._world = [worker.number for worker in members]
        self._told_slots = frozenset(seats)
        self.phase, self._told_change, self._lost_at = Phase.TRAINING, None, {}
        self._announce_at, self._formed_at = math.inf, now
        took_s = now - self._reset_began if old_round else 0.0
        text = f"world {self.round}: {counted(len(members), 'rank')} on {_hosts_of(members)}"
        if old_round:
            text += f", {took_s:.2f} s after the first left world {old_round}"
        self._log(
            "world",
            text,
            round=self.round,
            size=len(members),
            members=[{"worker": w.number, "host": w.host, "rank": w.rank} for w in members],
            joined=[number for number in self._world if number not in before],
            left=[number for number in before if number not in self._world],
            waited_s=round(took_s, 4),
            reasons=sorted({worker.said.why for worker in members if worker.said.why}),
        )
        for number in [each.number for each in self._workers.values() if not each.alive]:
            if number not in self._world:
                del self._workers[number]

    # -- who is in it ---------------------------------------------------------------------------------------

    def _candidates(self) -> list[_Worker]:
        """Who can be in the next world now, in the order of its ranks: members of the old one before
        newcomers, so that rank 0 has the state. Hosts keep their order; those with members come first.
        """
        ready = [w for w in self._living() if w.state is _State.WAITING and self._usable(w)]
        return self._in_order(ready)

    def _in_order(self, workers: Sequence[_Worker]) -> list[_Worker]:
        """At most ``most`` of them: those that have the state first, then other members."""
        hosts = {name: number for number, name in enumerate(self._hosts.names)}
        old = {worker.number for worker in workers if self._has_state(worker)}
        old_hosts = {worker.host for worker in workers if worker.number in old}

        def place(worker: _Worker) -> tuple[object, ...]:
            newcomer = worker.number not in old
            host = hosts.get(worker.host, len(hosts))
            return (worker.host not in old_hosts, host, newcomer, worker.index if newcomer else worker.rank)

        def claim(worker: _Worker) -> tuple[object, ...]:
            return (worker.number not in old, worker.number not in self._world, *place(worker))

        return sorted(sorted(workers, key=claim)[: self.rules.most], key=place)

    def _staff(self, now: float) -> None:
        """Have a worker on every slot that the next world can use, and the spares; end newcomers whose slot
        is gone.
        """
        for worker in self._living():
            if worker.number not in self._world and not worker.told_to_end and not self._usable(worker):
                self._end([worker], now, "its slot is not part of the job any more")
        if self.rules.at_once:
            return
        count = sum(self._usable(worker) for worker in self._living())
        room = math.inf if self.rules.most is None else self.rules.most + self.rules.spares
        for host, index in self._free_slots():
            if count >= room:
                break
            count += 1
            number = self._start(host, index, (0, 1, 0, 1, 0, 1))
            self._log(
                "newcomer",
                f"starting a worker in slot {index} of {host}",
                worker=number,
                host=host,
                slot=index,
            )
        self.actions = [self._with_place(each) for each in self.actions]

    def _with_place(self, action: Action) -> Action:
        """A start with the place that is expected when all have come: known when all are there."""
        if not isinstance(action, Start) or action.worker in self._world:
            return action
        place = self._expected(self._workers[action.worker])
        self._workers[action.worker].rank = place[0]
        return Start(action.worker, action.host, action.index, place)

    def _expected(self, worker: _Worker) -> Six:
        """The place that a newcomer has if all who are there are in the next world; a spare: the last one of
        its host, or of the world.
        """
        coming = self._in_order([each for each in self._living() if self._usable(each)])
        if worker not in coming:
            here = [number for number, each in enumerate(coming) if each.host == worker.host]
            place = here[-1] if here else max(0, len(coming) - 1)
            coming[place : place + 1] = [worker]
        return places_of([Seat(each.host, each.index) for each in coming])[coming.index(worker)]

    def _announce(self, now: float) -> None:
        """Tell rank 0 when the next world would be another one."""
        members = self._members()
        gone = [member.number for member in members if not self._usable(member)]
        ready = [w for w in self._living() if w.state is _State.WAITING and self._usable(w)]
        staying = [member for member in members if self._usable(member)]
        joining = [w.number for w in self._in_order([*staying, *ready]) if w.number not in self._world]
        change = frozenset(gone), frozenset(joining)
        again = change == self._told_change
        if not (gone or joining):
            self._announce_at = math.inf
            return
        if again and now < self._announce_at:
            return
        if not (again or gone) and now < self._gathered_at():
            self._announce_at = self._gathered_at()
            return
        kind = HostUpdateResult.no_update
        kind |= HostUpdateResult.removed if gone else kind
        kind |= HostUpdateResult.added if joining else kind
        self._told_change = change
        # Rank 0 may have been on its way between two worlds, or between two functions: it is told again.
        self._again_s = min(2 * self._again_s, _AGAIN_S[1]) if again else _AGAIN_S[0]
        self._announce_at = now + self._again_s
        self._news += 1
        self.actions.append(Notify(int(kind)))
        if again:
            return
        ranks = ", ".join(str(self._workers[number].rank) for number in gone)
        what = [f"slots of rank {ranks} are gone"] if gone else []
        what += [f"{counted(len(joining), 'worker')} can join"] if joining else []
        self._log("notified", f"rank 0 is told: {' and '.join(what)}", gone=gone, joining=joining)

    def _announce_slots(self) -> None:
        """As `_announce`, if new slots count at once: tell rank 0 of each change of those that the next world
        would have.
        """
        if any(self._reaches[host].trying for host in self._hosts.names):
            return  # what is to be told is not known yet
        staying = [member for member in self._members() if self._usable(member)]
        coming = self._in_order([*staying, *self._fresh()])
        slots = frozenset(Seat(worker.host, worker.index) for worker in coming)
        gone, joining = self._told_slots - slots, slots - self._told_slots
        if not (gone or joining):
            return
        kind = HostUpdateResult.removed if gone else HostUpdateResult.no_update
        kind |= HostUpdateResult.added if joining else kind
        self._told_slots = slots
        self._news += 1
        self.actions.append(Notify(int(kind)))
        what = [f"{counted(len(gone), 'slot')} gone"] if gone else []
        what += [f"{counted(len(joining), 'slot')} new"] if joining else []
        self._log(
            "notified", f"rank 0 is told: {', '.join(what)}", gone=sorted(gone), joining=sorted(joining)
        )

    def _gathered_at(self) -> float:
        """Until when newcomers that are ready wait for others that are on their way."""
        ready = [w.since for w in self._living() if w.state is _State.WAITING and w.number not in self._world]
        coming = any(w.state in _ON_THE_WAY and self._usable(w) for w in self._living())
        return min(ready) + self.rules.gather_s if ready and coming else -math.inf

    # -- who is not -----------------------------------------------------------------------------------------

    def _ended(self, worker: _Worker, exit_code: int | None, now: float, why: str = "") -> None:
        worker.state, worker.exit_code, worker.since, worker.end_at = _State.ENDED, exit_code, now, math.inf
        worker.ended_as, self._ends = self._ends, self._ends + 1
        if exit_code is None:
            self._lingering.pop(worker.number, None)  # what the host had is not known, and not to be told
        else:
            self._lingering[worker.number] = (worker.host, worker.index)
        if self.phase in (Phase.ENDING, Phase.OVER) or worker.told_to_end:
            return
        how = "was lost with its host" if exit_code is None else describe_exit(exit_code)
        how += f": its script {why}" if why and exit_code else ""
        if worker.number in self._world:
            who = f"rank {worker.rank} on {worker.host}"
            self._log(
                "ended" if exit_code == 0 else "left",
                f"{who} {how}",
                rank=worker.rank,
                host=worker.host,
                exit_code=exit_code,
            )
            self.actions.append(Spoil(self.round, f"Rank {worker.rank} on host {worker.host} {how}.",
                                      worker.rank, worker.host))  # fmt: skip
            if self.phase is Phase.SHORT and worker.failed:
                self._leave_out(worker, now)
            return
        self._log(
            "newcomer_left",
            f"a worker in slot {worker.index} of {worker.host} {how} before it was in a world",
            worker=worker.number, host=worker.host, exit_code=exit_code,
        )  # fmt: skip
        # Members beside it show that the host as a whole is not to blame.
        beside = any(member.host == worker.host and member.alive for member in self._members())
        self._leave_out(worker, now, by_slot=True if beside or exit_code == 0 else None)

    def _leave_out(self, failure: _Worker, now: float, by_slot: bool | None = None) -> None:
        """A worker has failed: do not use its host, or its slot, for a while or for ever."""
        if by_slot is None:
            alone = len(self._hosts.discovered) < 2
            by_slot = alone if self.rules.by_slot is None else self.rules.by_slot
        host, index = failure.host, failure.index
        if self._hosts.is_drained(host, index):
            return  # it was announced to go
        if by_slot:
            until = self._hosts.leave_out(host, index, now)
            what = f"slot {index} of {host}"
        else:
            if self._hosts.is_blacklisted(host):
                return
            until = self._hosts.blacklist(host, now)
            what = f"host {host}"
            others = [each for each in self._living() if each.host == host and not each.told_to_end]
            self._end(others, now, "its host is left out")
        span = "from now on" if until == math.inf else f"for {until - now:.1f} s"
        self._log("left_out", f"{what} is left out {span}", host=host, slot=index if by_slot else None,
                  back_s=None if until == math.inf else round(until - now, 3))  # fmt: skip

    def _blame(self, waiting: Sequence[_Worker], failures: Sequence[_Worker], now: float) -> None:
        """If worlds cannot be formed though nobody has ended, leave out the host that most name."""
        if self._spoiled < _SPOILED_ROUNDS or failures:
            return
        votes = Counter(
            self._world[member.said.because]
            for member in waiting
            if member.said.because is not None
            and member.said.because < len(self._world)
            and self._world[member.said.because] != member.number
        )
        if not votes:
            return
        most = max(votes.values())
        number = max(number for number, count in votes.items() if count == most)
        worker = self._workers[number]
        self._log(
            "blamed",
            f"{counted(self._spoiled, 'world')} in a row could not be formed; {counted(most, 'rank')} of "
            f"{len(waiting)} could not connect with rank {worker.rank} on {worker.host}",
            rank=worker.rank, host=worker.host,
        )  # fmt: skip
        self._leave_out(worker, now)
        if worker.alive and not worker.told_to_end:
            self._end([worker], now, "others cannot connect with it")

    def _look_for_lost(self, now: float) -> None:
        """A member that others have lost and that is silent is ended: else it is awaited for ever."""
        members = self._members()
        for member in members:
            because = member.said.because if member.state is _State.WAITING else None
            if because is not None and because < len(members) and members[because].state is _State.PLACED:
                self._lost_at.setdefault(members[because].number, now)
        for number, at in list(self._lost_at.items()):
            worker = self._workers[number]
            if worker.state is not _State.PLACED:
                del self._lost_at[number]
            elif now >= at + self.rules.lost_s:
                self._lost_at[number] = math.inf
                self._log(
                    "killed",
                    f"rank {worker.rank} on {worker.host} is ended: others have lost it, and it has not been "
                    f"heard of for {self.rules.lost_s:g} s",
                    rank=worker.rank, host=worker.host,
                )  # fmt: skip
                self.actions.append(End((number,), kill=True))

    # -- ends -----------------------------------------------------------------------------------------------

    def _finish(self, failures: Sequence[_Worker], now: float) -> None:
        """The job is over. If workers have failed by themselves, by the first of them."""
        if failures and self._failed is None:
            first = min(failures, key=lambda worker: worker.ended_as)
            self._failed = WorkerEnd(first.number, first.rank, first.host, first.index, first.exit_code)
        self._close(now, "the job has ended")

    def _fail(self, why: str, now: float) -> None:
        self._error = self._error or why
        self._close(now, "the job has failed")

    def _close(self, now: float, why: str) -> None:
        self.phase = Phase.ENDING
        for worker in self._living():
            if worker.told_to_end:
                continue
            if worker.state is _State.WAITING:
                self._dismiss(worker, why, now)
            else:
                self._end([worker], now, why)

    def _dismiss(self, worker: _Worker, why: str, now: float) -> None:
        worker.told_to_end, worker.end_at = True, now + _END_S
        self._tell(worker, Dismissed(why))

    def _end(self, workers: Sequence[_Worker], now: float, why: str) -> None:
        if not workers:
            return
        for worker in workers:
            worker.told_to_end, worker.end_at = True, math.inf
        numbers = tuple(worker.number for worker in workers)
        self._log("ending", f"ending {_slots_of(workers)}: {why}", workers=list(numbers))
        self.actions.append(End(numbers))

    def _end_overdue(self, now: float) -> None:
        self._end([w for w in self._living() if now >= w.end_at], now, "it was told to end, and has not")

    # -- parts ----------------------------------------------------------------------------------------------

    def _members(self) -> list[_Worker]:
        return [self._workers[number] for number in self._world]

    def _living(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.alive]

    def _reported(self, number: int) -> bool:
        return self._workers[number].state in (_State.WAITING, _State.ENDED)

    def _has_state(self, worker: _Worker) -> bool:
        """Whether it can give others the state: a member, unless it has left a world in which it did not get
        it. Before anybody has said to have it, all begin with the same.
        """
        said = worker.said.synced or worker.state is _State.PLACED or not self._begun
        return worker.number in self._world and said

    def _usable(self, worker: _Worker) -> bool:
        """Whether its slot is part of the job."""
        return not worker.told_to_end and worker.index in self._hosts.slots(worker.host)

    def _is_out(self, worker: _Worker) -> bool:
        """Whether its host or slot is left out for a failure."""
        return self._hosts.has_failed(worker.host, worker.index)

    def _free_slots(self) -> list[tuple[str, int]]:
        """Slots where a worker can be started, in the order of ranks."""
        taken = {(worker.host, worker.index) for worker in self._living()} | {*self._lingering.values()}
        return [
            (host, index)
            for host in self._hosts.names
            if (reach := self._reaches.get(host)) is not None and reach.reached
            for index in self._hosts.slots(host)
            if (host, index) not in taken
        ]

    def _fresh(self) -> list[_Worker]:
        """Workers for all free slots, not started."""
        slots = enumerate(self._free_slots(), start=self._next_worker)
        return [_Worker(number, host, index) for number, (host, index) in slots]

    def _start(self, host: str, index: int, place: Six) -> int:
        worker = _Worker(self._next_worker, host, index)
        self._launch(worker, place)
        return worker.number

    def _launch(self, worker: _Worker, place: Six) -> None:
        self._next_worker = max(self._next_worker, worker.number + 1)
        self._workers[worker.number] = worker
        worker.rank = place[0]
        self.actions.append(Start(worker.number, worker.host, worker.index, place))

    def _tell(self, worker: _Worker, answer: Answer) -> None:
        self.actions.append(Tell(worker.number, worker.report, answer))

    def _log(self, event: str, text: str, **fields: object) -> None:
        self.actions.append(Log(event, text, fields))

    def _needed(self) -> int:
        return self.rules.processes if self.phase is Phase.SLOTS else self.rules.least

    def _shortage(self) -> str:
        usable = {host: len(self._hosts.slots(host)) for host in self._hosts.names if self._is_reached(host)}
        return (
            f"{counted(self._needed(), 'slot')} needed, {sum(usable.values())} there"
            f"{f' ({_named(usable)})' if usable else ''}"
        )

    def _is_reached(self, host: str) -> bool:
        reach = self._reaches.get(host)
        return reach is not None and reach.reached

    def _why_short(self, now: float) -> str:
        reasons = []
        if not self._discovered_once:
            reasons.append("The hosts are not known yet.")
        for host in self._hosts.names:
            reach = self._reaches.get(host)
            if reach is not None and not reach.reached:
                reasons.append(f"Host {host} is being reached{f': {reach.told}' if reach.told else ''}.")
        for host, until in self._hosts.blacklisted.items():
            if host in self._hosts.discovered:
                span = "for good" if until == math.inf else f"for {max(0.0, until - now):.0f} s more"
                reasons.append(f"Host {host} has failed and is left out {span}.")
        return " ".join(reasons)


def _named(hosts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{slots}" for name, slots in hosts.items()) or "none"


def _hosts_of(workers: Sequence[_Worker]) -> str:
    return _named(Counter(worker.host for worker in workers))


def _slots_of(workers: Sequence[_Worker]) -> str:
    return ", ".join(f"{worker.host}[{worker.index}]" for worker in workers)
