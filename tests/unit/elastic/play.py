"""A driver with workers that are not there: what it wants is done by a few lines, and time is a number."""

from __future__ import annotations

from collections.abc import Callable, Collection

from horovod.bootstrap.store.membership import Assigned, Dismissed, Expected, Report
from horovod.launch.driver.actions import Doubt, Drop, End, Log, Notify, Over, Reach, Spoil, Start, Tell
from horovod.launch.elastic.hosts import Hosts
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.launch.elastic.rules import Phase, Rules
from horovod.launch.elastic.saved import Saved, packed

__all__ = ["Play", "Worker", "hosts_of"]


class Worker:
    def __init__(self, start: Start) -> None:
        self.number, self.host, self.index = start.worker, start.host, start.slot
        self.expected = start.place
        self.reports = 0
        self.answers: list[Assigned | Expected | Dismissed] = []
        self.alive = True
        self.asked = False
        """It waits for an answer."""
        self.said = Report(ready=False)
        """Its last report."""
        self.told = 0
        """How many of its reports the driver before this one has heard."""
        self.code = 0

    @property
    def place(self) -> tuple[int, ...] | None:
        placed = [answer for answer in self.answers if isinstance(answer, Assigned)]
        return placed[-1].place if placed else None

    @property
    def round(self) -> int:
        placed = [answer for answer in self.answers if isinstance(answer, Assigned)]
        return placed[-1].round if placed else 0

    @property
    def dismissed(self) -> bool:
        return any(isinstance(answer, Dismissed) for answer in self.answers)


class Play:
    """The world around a driver. ``unreachable``: hosts that cannot be reached."""

    def __init__(self, least: int, processes: int | None = None, **rules: object) -> None:
        cooldown_s = rules.get("cooldown_s")
        self.rules = Rules(processes=processes or least, least=least, **rules)  # type: ignore[arg-type]
        self.now = 1000.0
        self.hosts = Hosts(cooldown_s, uniform=lambda: 0.5)  # type: ignore[arg-type]
        self.driver = ElasticPolicy(self.rules, self.hosts, self.now)
        self.workers: dict[int, Worker] = {}
        self.notified: list[int] = []
        self.logs: list[Log] = []
        self.spoiled: list[Spoil] = []
        self.doubted: list[str] = []
        self.dropped: list[str] = []
        self.off: set[str] = set()
        """Hosts that are switched off."""
        self.killed: list[int] = []
        self.over: Over | None = None
        self.unreachable: set[str] = set()
        self.stopped: set[int] = set()
        self.raised: set[int] = set()
        """Workers whose scripts have failed, and whose processes may take longer to end."""
        self.stubborn: set[int] = set()
        """Workers that a first signal does not end."""
        self.dies: Callable[[int], int] | None = None
        """The driver is killed when it has done so many of the next actions, of so many."""

    # -- what happens --

    def discover(self, **slots: int) -> None:
        self.driver.discovered(slots, self.now)
        self.act()

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick whenever the driver wants one."""
        until = self.now + seconds
        while self.driver.due() < until:
            self.now = max(self.now, self.driver.due()) + 1e-6
            self.driver.tick(self.now)
            self.act()
            assert self.driver.due() > self.now, "it wants to be called again at once, for ever"
        self.now = max(self.now, until)
        self.driver.tick(self.now)
        self.act()

    def arrive(self, *numbers: int) -> None:
        for number in numbers:
            self._report(number, Report(ready=False))

    def ready(
        self,
        *numbers: int,
        formed: bool = True,
        failed: bool = False,
        because: int | None = None,
        synced: bool = False,
        silent: bool = False,
    ) -> None:
        for number in numbers:
            worker = self.workers[number]
            round_ = worker.round
            why = "why" if failed else ""
            if silent:
                why = f"rank {because} on host x is lost: no sign of life for 5 s (…)"
            self._report(number, Report(True, round_, formed and round_ > 0, failed, why, because, synced))

    def fail(self, number: int, why: str = "raised ValueError: boom", lost: int | None = None) -> None:
        """The script of a worker fails: its process is to `exit` later."""
        self.raised.add(number)
        self.driver.failing(number, why, lost, self.now)
        self.act()

    def exit(self, number: int, code: int = 0, lost: int | None = None) -> None:
        worker = self.workers[number]
        assert worker.alive
        worker.alive, worker.code = False, code
        self.driver.exited(number, code, self.now, "", lost)
        self.driver.gone(number, self.now)
        self.act()

    def stop(self, *numbers: int) -> None:
        """A signal stops them."""
        for number in numbers:
            self.stopped.add(number)
            self.driver.stopped(number, self.now)
            self.act()

    def go_on_with(self, *numbers: int) -> None:
        """What was stopped runs again."""
        for number in numbers:
            self.stopped.discard(number)
            self.driver.continued(number, self.now)
            self.act()

    def lose(self, host: str) -> None:
        for worker in self.workers.values():
            if worker.host == host:
                worker.alive = False
        self.driver.host_lost(host, "silent", self.now)
        self.act()

    def restart(self, state: str = "") -> None:
        """Another driver goes on, with ``state`` or that of the last moment: who waits for an answer asks
        again.
        """
        saved = Saved((), "", {}, "", "", (), "", {}, (), (), state or packed(self.driver), 0.0, 0.0)
        self.driver = saved.state_machine()
        self.hosts = self.driver.hosts
        self.hosts.uniform = lambda: 0.5
        reached = self.driver.begin_again((), self.now)
        believed = self.driver.living()
        for host in reached:
            self.driver.reached(host, self.now)
        for number in believed:
            if number in self.workers and not self.workers[number].alive:
                self.driver.exited(number, self.workers[number].code, self.now)
        for number, worker in self.workers.items():
            if not worker.alive:
                self.driver.gone(number, self.now)
        self.driver.never_began([number for number in believed if number not in self.workers], self.now)
        waiting = [worker for worker in self.workers.values() if worker.alive and worker.asked]
        for worker in self.workers.values():
            worker.reports -= worker in waiting
            worker.told = worker.reports  # the next store counts from 0
            worker.asked = False
        self.act()
        for worker in waiting:
            if worker.alive and self.over is None:
                self._report(worker.number, worker.said)

    def begin(self, **slots: int) -> list[int]:
        """Discover hosts, let all workers arrive; returns the world."""
        self.discover(**slots)
        self.arrive(*self.alive())
        return self.world

    # -- what is --

    @property
    def world(self) -> list[int]:
        return list(self.driver.world)

    @property
    def phase(self) -> Phase:
        return self.driver.phase

    def is_over(self) -> bool:
        """For the same reason as `awaits`."""
        return self.over is not None

    def awaits(self, phase: Phase) -> bool:
        """Whether that is its phase now; mypy believes of `phase` that it stays."""
        return self.driver.phase is phase

    def alive(self) -> list[int]:
        return [worker.number for worker in self.workers.values() if worker.alive]

    def newcomers(self) -> list[int]:
        return [number for number in self.alive() if number not in self.world]

    def size(self) -> int:
        """Of the world, as its members know it."""
        places = [self.workers[number].place for number in self.world]
        sizes = {place[1] for place in places if place is not None}
        assert None not in places
        assert len(sizes) == 1, places
        return sizes.pop()

    # -- doing --

    def _report(self, number: int, report: Report) -> None:
        worker = self.workers[number]
        assert worker.alive
        assert not worker.asked, "it reports while it waits for an answer"
        worker.asked, worker.said = True, report
        worker.reports += 1
        self.driver.said(number, worker.reports - worker.told - 1, report, self.now)
        self.act()

    def act(self) -> None:
        while self.driver.actions:
            state = packed(self.driver) if self.dies is not None else ""
            actions, self.driver.actions = self.driver.actions, []
            done = len(actions) if self.dies is None else self.dies(len(actions))
            for action in actions[:done]:
                self._do(action)
            if state and self.over is None:
                self.dies = None
                self.restart(state)

    def _do(self, action: object) -> None:
        assert self.over is None, action
        match action:
            case Reach(host):
                if host in self.unreachable:
                    self.driver.host_lost(host, "no route. Try it by hand.", self.now)
                else:
                    self.driver.reached(host, self.now)
            case Doubt(host):
                self.doubted.append(host)
                if host in self.off:
                    self.lose(host)
            case Drop(host):
                self.dropped.append(host)
                assert not any(worker.alive and worker.host == host for worker in self.workers.values())
            case Start():
                assert action.worker not in self.workers
                taken = {(each.host, each.index) for each in self.workers.values() if each.alive}
                assert (action.host, action.slot) not in taken
                assert action.slot in self.hosts.slots(action.host)
                self.workers[action.worker] = Worker(action)
            case End(numbers, kill):
                for number in numbers:
                    worker = self.workers[number]
                    if worker.host in self.off:
                        continue
                    if worker.alive and (kill or number not in self.stubborn):
                        worker.alive, worker.code = False, -9 if kill else -15
                        self.killed.append(number)
                        self.driver.exited(number, worker.code, self.now)
                        self.driver.gone(number, self.now)
            case Tell(number, report, answer):
                worker = self.workers[number]
                if worker.alive:
                    assert worker.asked
                    assert report == worker.reports - worker.told - 1
                    worker.asked = False
                    worker.answers.append(answer)
                    if isinstance(answer, Dismissed) and number not in self.stubborn | self.stopped:
                        worker.alive = False
                        self.driver.exited(number, 0, self.now)
                        self.driver.gone(number, self.now)
            case Notify(kind):
                self.notified.append(kind)
            case Spoil():
                self.spoiled.append(action)
            case Log():
                self.logs.append(action)
            case Over():
                self.over = action
                # What has failed before the last world is ended with the job.
                left = {*self.alive()}
                assert left <= self.raised - {*self.world}, left
                for number in left:
                    self.workers[number].alive = False


def hosts_of(play: Play, numbers: Collection[int]) -> list[str]:
    return [play.workers[number].host for number in numbers]
