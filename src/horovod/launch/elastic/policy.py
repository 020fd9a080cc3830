"""The policy of an elastic job: decides which workers run, and which of them are a world.

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
from collections.abc import Mapping, Sequence

from horovod.bootstrap.store.membership import Expected, Leaving, Report, Resumed
from horovod.launch.driver.actions import Action, Over, WorkerEnd
from horovod.launch.elastic.announcements import Announcements
from horovod.launch.elastic.failures import Failures
from horovod.launch.elastic.hosts import Hosts, named
from horovod.launch.elastic.places import Seat
from horovod.launch.elastic.progress import Progress
from horovod.launch.elastic.reaches import Reaches
from horovod.launch.elastic.rules import ENDS, Phase, Rules
from horovod.launch.elastic.shortage import ONCE, Shortage
from horovod.launch.elastic.staff import Staff, seats_of
from horovod.launch.elastic.stillness import Stillness
from horovod.launch.elastic.verdict import Judge
from horovod.launch.elastic.workers import END_S, ON_THE_WAY, Worker, Workers, WorkerState, hosts_of
from horovod.launch.phrases import counted

__all__ = ["ElasticPolicy"]

_FORMING = (Phase.FIRST, Phase.RESET, Phase.SHORT)


class ElasticPolicy:
    """Has the phase of the job, and passes what happens to its parts.

    Args:
        rules: sizes and limits.
        hosts: the order of hosts, and the blacklist.
        now: the time, in seconds, as all later ones.
    """

    def __init__(self, rules: Rules, hosts: Hosts, now: float) -> None:
        self.rules = rules
        self.phase = Phase.SLOTS
        self._hosts = hosts
        self._workers = Workers(rules, hosts)
        self._reaches = Reaches(self._workers)
        self._shortage = Shortage(self._workers, self._reaches, now)
        self._staff = Staff(self._workers, self._reaches)
        self._announcements = Announcements(self._workers, self._staff, self._reaches)
        self._failures = Failures(self._workers)
        self._stillness = Stillness(self._workers)
        self._judge = Judge(self._workers, self._failures, now)
        self._progress = Progress(self._workers, self._staff, self._shortage, self._judge, now)
        self._reset_began = 0.0
        self._error = ""
        self._failed: WorkerEnd | None = None

    # -- what happens ---------------------------------------------------------------------------------------

    def discovered(self, found: Mapping[str, int], now: float, passing: Sequence[str] = ()) -> None:
        """Discovery has found these hosts. ``passing``: others were listed for a moment only."""
        self._shortage.hosts_known = True
        for host in self._shortage.passed_by(found, passing):
            self._log("passing", f"host {host} is listed off and on: {ONCE}", host=host)
        before = dict(self._hosts.discovered)
        kind = self._hosts.update(found)
        if kind:
            self._log(
                "hosts",
                f"hosts: {named(found)}" + (f" (before: {named(before)})" if before else ""),
                kind=kind.name or "mixed",
                hosts=dict(found),
            )
        self._settle(now)

    def discovery_failed(self, why: str, now: float) -> None:
        """Discovery failed: at the first time that ends the job, later the hosts stay what they were."""
        if self._shortage.hosts_known:
            self._log("discovery_failed", f"{why} The hosts stay {named(self._hosts.discovered)}.", why=why)
        else:
            self._fail(why, now)
        self._settle(now)

    def reached(self, host: str, now: float) -> None:
        """Workers can be started on a host."""
        self._reaches.reached(host)
        self._settle(now)

    def host_lost(self, host: str, why: str, now: float) -> None:
        """A host cannot be reached, or its connection has ended: its workers count as failed."""
        if self.phase is Phase.OVER:
            return
        self._reaches.lost(host, why, now)
        for worker in [worker for worker in self._workers.living() if worker.host == host]:
            self._ended(worker, None, now)
        for worker in [worker for worker in self._workers.known() if worker.host == host and worker.exiting]:
            self._exited_at_last(worker, None)
        lingering = self._workers.lingering.items()
        self._workers.lingering = {number: slot for number, slot in lingering if slot[0] != host}
        self._settle(now)

    def said(self, number: int, report_number: int, report: Report, now: float) -> None:
        """A worker has reported."""
        workers = self._workers
        worker = workers.get(number)
        if worker is None or not worker.alive or report_number <= worker.report:
            return
        worker.report, worker.said, worker.since, worker.came = report_number, report, now, True
        worker.failed_at = None
        workers.begun = workers.begun or report.synced
        if not report.ready and worker.state is WorkerState.PLACED:
            anew = [member for member in workers.members() if member.alive and member.said.ready]
            # A member has arrived again: another program runs there. When all have, it begins anew.
            workers.begun = workers.begun and bool(anew)
        promised, worker.promised = worker.promised, None
        if self.phase in ENDS or worker.told_to_end:
            workers.dismiss(worker, "its slot is gone" if worker.told_to_end else "the job has ended", now)
        elif promised is not None and self.phase is Phase.TRAINING:
            worker.state = WorkerState.PLACED
            workers.tell(worker, promised)
        elif not report.ready and number not in workers.world:
            worker.state = WorkerState.PREPARING
            place = self._staff.expected(worker)
            worker.rank = place[0]
            workers.tell(worker, Expected(place, workers.round))
        else:
            worker.state = WorkerState.WAITING
        self._settle(now)

    def leaving(self, number: int, leaving: Leaving, now: float) -> None:
        """A worker, or its whole host, will be taken away: the next world does without."""
        worker = self._workers.get(number)
        if worker is None or not worker.alive or worker.told_to_end:
            return
        slots = range(self._hosts.discovered.get(worker.host, 0)) if leaving.host else [worker.index]
        if set(slots) & set(self._hosts.slots(worker.host)):
            what = f"rank {worker.rank} on {worker.host}"
            if number not in self._workers.world:
                what = f"the worker in slot {worker.index} of {worker.host}"
            if leaving.host:
                what = f"host {worker.host}"
            self._hosts.drain(worker.host, slots, now)
            self._log(
                "leaving", f"{what} will be taken away: {leaving.why}", host=worker.host,
                slot=None if leaving.host else worker.index, why=leaving.why,
            )  # fmt: skip
        self._settle(now)

    def stopped(self, number: int, now: float) -> None:
        """A signal, such as SIGSTOP, has stopped a worker: it does nothing until it is `continued`."""
        worker = self._workers.get(number)
        if worker is not None and worker.stopped_at is None:
            worker.stopped_at = now
        self._settle(now)

    def continued(self, number: int, now: float) -> None:
        """A worker that was stopped goes on."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.stopped_at = None
        self._settle(now)

    def resumed(self, number: int, resumed: Resumed) -> None:
        """Rank 0 trains again after a reset."""
        if resumed.round == self.round and number in self._workers.world:
            phases = ", ".join(f"{name} {1000 * took_s:.0f}" for name, took_s in resumed.took.items())
            total_s = sum(resumed.took.values())
            self._log(
                "resumed",
                f"world {resumed.round} trains after a reset of {total_s:.2f} s (ms: {phases})",
                round=resumed.round, took=dict(resumed.took),
            )  # fmt: skip

    def failing(self, number: int, why: str, lost: int | None, now: float) -> None:
        """The script of a worker has failed: its process will end. ``why`` and ``lost`` as of `exited`."""
        worker = self._workers.get(number)
        if worker is not None and worker.alive and worker.failed_at is None:
            worker.failed_at, worker.failed_why, worker.lost_last = now, why, lost
        self._settle(now)

    def exited(self, number: int, exit_code: int, now: float, why: str = "", lost: int | None = None) -> None:
        """A worker has ended; `exit_code` is negative for a signal. ``why``: what its script said last.
        ``lost``: the rank of its world that fell silent before, as it said.
        """
        worker = self._workers.get(number)
        if worker is not None and worker.exiting:
            self._exited_at_last(worker, exit_code)
        elif worker is not None and worker.alive:
            worker.lost_last = lost
            self._ended(worker, exit_code, now, why)
        self._settle(now)

    def gone(self, number: int, now: float) -> None:
        """Nothing that a worker has started runs any more: its slot, and the device there, are free."""
        worker = self._workers.get(number)
        if worker is not None and worker.exiting:
            self._exited_at_last(worker, None)
        elif worker is not None and worker.alive:
            self._ended(worker, None, now)  # even SIGKILL does not end it
        self._workers.lingering.pop(number, None)
        self._settle(now)

    def begin_again(self, agents: Sequence[str], now: float) -> list[str]:
        """This is another process than the one before: it has to connect with its hosts anew, and what was in
        ``actions`` may have been done or not. ``agents``: hosts that it was connected with.

        Returns:
            These, and those that workers are on: `reached` or `host_lost` is to follow for each.
        """
        self._workers.begin_again()
        self._announcements.begin_again()
        self._failures.formed()  # who was to be ended for silence may not have been
        self._stillness.formed()
        self._shortage.wait_anew(now)
        self._progress.begin(now)
        if self.phase is Phase.SHORT:
            self.phase = Phase.RESET if self.round else Phase.FIRST
            self._judge.resets = max(0, self._judge.resets - 1)  # it is counted again
        if self.phase is Phase.OVER:
            self.phase = Phase.ENDING  # nobody may have heard it
        self._log("driver", f"another driver goes on: {self.describe(now)}", round=self.round)
        hosts = self._reaches.begin_again(agents)
        self._settle(now)
        return hosts

    def never_began(self, numbers: Sequence[int], now: float) -> None:
        """These workers were to be started by the driver before this one, and were not: now they are."""
        for worker in [worker for worker in self._workers.living() if worker.number in numbers]:
            if self.phase in ENDS or not self._workers.usable(worker):
                worker.told_to_end = True  # it is nobody's fault
                self._ended(worker, None, now)
            else:
                self._workers.start(worker, self._staff.place_of(worker))
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
        self._announcements.news += 1

    # -- what is --------------------------------------------------------------------------------------------

    def due(self) -> float:
        """When `tick` has something to do; ``math.inf``: not before something else happens."""
        if self.phase is Phase.OVER:
            return math.inf
        times = [worker.end_at for worker in self._workers.known()]
        if self.phase is Phase.ENDING:
            return min(times, default=math.inf)
        times += [self._hosts.next_readmission(), self._reaches.due()]
        if self.phase in (Phase.SLOTS, Phase.SHORT):
            times += [self._shortage.until, self._progress.at]
        if self.phase in (Phase.FIRST, Phase.RESET):
            times += [self._progress.at, self._failures.due(), self._enough_at()]
            times.append(self._failures.exiting_due())
        if self.phase in _FORMING:
            times.append(self._stillness.due())
        if self.phase is Phase.TRAINING:
            times.append(self._announcements.at)
        return min(times)

    def describe(self, now: float) -> str:
        """One line about what is under way, for people."""
        return self._progress.describe(self.phase, now)

    @property
    def actions(self) -> list[Action]:
        """Actions to be carried out, in order. Whoever does that leaves an empty list."""
        return self._workers.actions

    @actions.setter
    def actions(self, actions: list[Action]) -> None:
        self._workers.actions = actions

    @property
    def round(self) -> int:
        """Of the present world; 0: there has been none."""
        return self._workers.round

    @property
    def hosts(self) -> Hosts:
        """Hosts that may be used."""
        return self._hosts

    def living(self) -> list[int]:
        """The workers that have not ended."""
        return [worker.number for worker in self._workers.living()]

    @property
    def news(self) -> int:
        """Number of news of the hosts so far."""
        return self._announcements.news

    @property
    def resets(self) -> int:
        """Number of times the world has changed."""
        return self._judge.resets

    @property
    def error(self) -> str:
        """Why the job has failed, if not because of a worker; empty: it has not."""
        return self._error

    @property
    def world(self) -> tuple[int, ...]:
        """The workers of the present world, by rank."""
        return tuple(self._workers.world)

    def seats(self) -> list[Seat]:
        """The slots of the present world, by rank."""
        return seats_of(self._workers.members())

    # -- the next step --------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Do all that follows from what has happened."""
        if self.phase is Phase.OVER:
            return
        self._workers.end_overdue(now)
        if self.phase is not Phase.ENDING:
            for host in self._hosts.readmit(now):
                self._log("readmitted", f"host {host} may be used again: its cool-down is over", host=host)
            self._reaches.connect(now)
        if self.phase is Phase.SLOTS:
            self._begin(now)
        if self.phase is Phase.TRAINING and any(member.reported for member in self._workers.members()):
            self.phase, self._reset_began = Phase.RESET, now
            self._progress.begin(now)
        if self.phase in (Phase.FIRST, Phase.RESET):
            self._failures.look_for_lost(now)
            self._stillness.look(self._workers.members(), now)
            if now >= self._failures.exiting_due():
                for member in self._failures.exiting():
                    member.exiting = True
                    self._ended(member, None, now, member.failed_why)
            self._decide(now)
        if self.phase is Phase.SHORT:
            self._stillness.look(self._workers.living(), now)
            self._form_or_wait(now)
        if self.phase is Phase.TRAINING:
            self._staff.fill(trains=True)
            self._announcements.look(now)
        exiting = any(member.exiting for member in self._workers.members())
        if self.phase is Phase.ENDING and not (self._workers.living() or exiting):
            self.phase = Phase.OVER
            self.actions.append(Over(self._error, self._failed, self.world))

    def _begin(self, now: float) -> None:
        """Start the workers of the first world when there are enough slots."""
        slots = self._reaches.free_slots()
        full = self.rules.most is not None and len(slots) >= self.rules.most
        if len(slots) < self.rules.processes or (self._reaches.any_tried() and not full):
            self._wait_for_slots(now)
            return
        self._staff.begin(slots[: self.rules.most])
        members = self._workers.members()
        self.phase = Phase.FIRST
        self._progress.begin(now)
        self._log("starting", f"starting {counted(len(members), 'rank')} on {hosts_of(members)}")

    def _decide(self, now: float) -> None:
        """When all members of the old world have reported: go on, or end."""
        settled = all(member.reported and not member.stopped for member in self._workers.members())
        if now < self._enough_at() and not settled:
            self._progress.say(self.phase, now)
            return
        verdict = self._judge.judge(now)
        if verdict.error:
            self._fail(verdict.error, now)
        elif verdict.goes_on:
            self.phase = Phase.SHORT
            self._shortage.wait_anew(now)
            self._progress.begin(now)
        else:
            self._finish(verdict.failures, now)

    def _enough_at(self) -> float:
        """When members that have not reported are no longer waited for: one has succeeded some time ago."""
        if self.rules.success_s is None:
            return math.inf
        members = self._workers.members()
        ended = [m.since for m in members if m.state is WorkerState.ENDED and m.exit_code == 0]
        return min(ended, default=math.inf) + self.rules.success_s

    def _form_or_wait(self, now: float) -> None:
        """Form the next world of those that are ready, if they are enough."""
        workers, staff = self._workers, self._staff
        able = [w for w in workers.living() if w.state is WorkerState.WAITING and workers.has_state(w)]
        if able and not self._hosts.discovered:
            self._wait_for_slots(now)  # discovery says nothing, which need not mean that all hosts are gone
            return
        if not any(workers.usable(worker) for worker in able):
            self._fail(
                "No hosts from previous set remaining: nobody is left who has the state of the training.", now
            )
            return
        if any(member.stopped and workers.usable(member) for member in workers.members()):
            self._progress.say(self.phase, now)  # it may have the state: it goes on soon, or is ended
            return
        members = staff.candidates()
        if self.rules.at_once:
            members = staff.in_order([*members, *staff.fresh()])
        if len(members) >= self.rules.least:
            self._form(members, now)
            staff.fill(trains=True)
            return
        staff.fill(trains=False)
        coming = [
            worker for worker in workers.living() if worker.state in ON_THE_WAY and workers.usable(worker)
        ]
        if len(members) + len(coming) < self.rules.least:
            self._wait_for_slots(now)
            return
        # There is room for enough. How long a worker takes until it is ready is up to the script.
        self._shortage.wait_anew(now)
        self._progress.say(self.phase, now)

    def _form(self, members: Sequence[Worker], now: float) -> None:
        self._staff.form(members, self._announcements.news, now, now - self._reset_began)
        self._announcements.formed(members)
        self._failures.formed()
        self._stillness.formed()
        self._judge.formed(now)
        self.phase = Phase.TRAINING

    def _wait_for_slots(self, now: float) -> None:
        verdict = self._shortage.verdict(self._progress.needed(self.phase), now)
        if verdict:
            self._fail(verdict, now)
        else:
            self._progress.say(self.phase, now, self._shortage.why(now))

    # -- ends -----------------------------------------------------------------------------------------------

    def _ended(self, worker: Worker, exit_code: int | None, now: float, why: str = "") -> None:
        """A worker has ended, whoever wanted it."""
        self._workers.ended(worker, exit_code, now)
        if self.phase in ENDS or worker.told_to_end:
            return
        self._failures.ended(worker, why, now)
        if self.phase is Phase.SHORT and worker.failed and worker.number in self._workers.world:
            self._failures.leave_out(worker, now)

    def _exited_at_last(self, worker: Worker, exit_code: int | None) -> None:
        """The process of a worker that counts as failed has ended, or is known no more (None)."""
        worker.exiting, worker.exit_code = False, exit_code or None
        if self._failed is not None and self._failed.worker == worker.number:
            self._failed = self._failed._replace(exit_code=worker.exit_code)

    def _log(self, event: str, text: str, **fields: object) -> None:
        self._workers.log(event, text, **fields)

    def _finish(self, failures: Sequence[Worker], now: float) -> None:
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
        for member in self._workers.members():
            if member.exiting:
                member.end_at = now + END_S
        for worker in self._workers.living():
            if worker.told_to_end:
                continue
            if worker.state is WorkerState.WAITING:
                self._workers.dismiss(worker, why, now)
            else:
                self._workers.end([worker], why)
