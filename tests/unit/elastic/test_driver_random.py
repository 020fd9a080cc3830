"""The driver of elastic jobs, in random histories: whatever happens, it goes on or ends."""

from __future__ import annotations

import os
import random

import pytest
from tests.unit.elastic.play import Play

from horovod.bootstrap.store.membership import Assigned
from horovod.launch.elastic.rules import Phase

_SEEDS = int(os.environ.get("FARANDOLE_ELASTIC_HISTORIES", "300"))
_STEPS = 60


class _History(Play):
    """Members follow the rules of a worker; everything else is thrown."""

    def __init__(self, seed: int, **rules: object) -> None:
        self.random = random.Random(seed)
        least = self.random.choice([1, 1, 2, 3])
        processes = least + self.random.choice([0, 0, 1, 2])
        super().__init__(
            least,
            processes=processes,
            most=self.random.choice([None, processes, processes + 2]),
            cooldown_s=self.random.choice([None, (1.0, 4.0), (1.0, 4.0)]),
            spares=self.random.choice([0, 0, 1, 2]),
            by_slot=self.random.choice([None, True, False]),
            reset_limit=self.random.choice([None, None, None, 5]),
            slots_wait_s=50.0,
            **rules,
        )
        self.names = ["a", "b", "c", "d"][: self.random.choice([1, 2, 4])]
        self.restarts = False
        """The driver is killed now and then, and another one goes on."""
        self.failing = False
        """A member has failed in this world: the others will notice."""

    def step(self) -> None:
        if self.restarts and self.over is None and self.random.random() < 0.1:
            if self.random.random() < 0.5:
                self.restart()
            else:
                self.dies = lambda count: self.random.randint(0, count)
        choice = self.random.random()
        if choice < 0.15:
            self.throw_hosts()
        elif choice < 0.25:
            self.wait(self.random.choice([0.1, 1.0, 12.0]))
        elif choice < 0.32 and self.alive():
            self.exit(self.random.choice(self.alive()), self.random.choice([1, -9, 1, -9, 1, 0]))
        elif choice < 0.35:
            self.lose(self.random.choice(self.names))
        elif choice < 0.37 and self.alive():
            self.stop(self.random.choice(self.alive()))
        elif choice < 0.41 and self.stopped:
            self.go_on_with(self.random.choice(sorted(self.stopped)))
        elif choice < 0.44 and self.at_work():
            self.fail(self.random.choice(self.at_work()))
        elif choice < 0.47:
            self.unreachable = set(self.random.sample(self.names, self.random.randint(0, len(self.names))))
        else:
            self.go_on()

    def at_work(self) -> list[int]:
        """Workers whose scripts run."""
        free = [n for n in self.alive() if not self.workers[n].asked and n not in self.stopped]
        return [number for number in free if number not in self.raised]

    def throw_hosts(self) -> None:
        found = {name: self.random.randint(0, 3) for name in self.names}
        order = [name for name in found if found[name]]
        self.random.shuffle(order)
        self.discover(**{name: found[name] for name in order})

    def go_on(self) -> None:
        """Somebody who is not waiting does what a worker does next."""
        free = self.at_work()
        if not free:
            self.wait(0.5)
            return
        number = self.random.choice(free)
        worker = self.workers[number]
        if worker.reports == 0:
            self.arrive(number)
        elif worker.round == 0:
            self.ready(number)
        elif self.phase is Phase.RESET or self.notified:
            failed = self.random.random() < 0.6
            size = worker.place[1] if worker.place else 1
            self.ready(
                number,
                formed=self.random.random() < 0.8,
                failed=failed,
                because=self.random.randrange(size) if failed else None,
            )

    def check(self) -> None:
        if self.over is not None or any(number not in self.workers for number in self.world):
            return  # the latter: the driver was killed before it had started this member
        members = [self.workers[number] for number in self.world]
        if self.phase is Phase.TRAINING:
            placed = [w.answers[-1] for w in members if w.alive and w.answers]
            assert all(isinstance(answer, Assigned) for answer in placed)
            rounds = {answer.round for answer in placed if isinstance(answer, Assigned)}
            assert rounds <= {self.driver.round}
            # A newcomer that counts at once is told when it comes.
            places = [
                worker.expected if self.rules.at_once and not worker.answers else worker.place
                for worker in members
            ]
            assert [place[0] for place in places if place] == list(range(len(members)))
            assert len(members) >= self.rules.least or self.driver.round == 1
            assert self.rules.most is None or len(members) <= self.rules.most
            locals_ = {(w.host, place[2]) for w, place in zip(members, places, strict=True) if place}
            assert len(locals_) == len(members)
            for place in places:
                assert place is not None
                assert 0 <= place[2] < place[3]
                assert 0 <= place[4] < place[5]


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_random_history(seed: int) -> None:
    _goes_on_or_ends(_History(seed))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_random_history_of_newcomers_that_count_at_once(seed: int) -> None:
    _goes_on_or_ends(_History(seed, at_once=True, success_s=random.Random(seed).choice([None, 5.0])))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_random_history_of_drivers_that_are_killed(seed: int) -> None:
    play = _History(seed, at_once=seed % 3 == 0)
    play.restarts = True
    _goes_on_or_ends(play)


def _goes_on_or_ends(play: _History) -> None:
    play.throw_hosts()
    old_rank_0: set[int] = set()
    round_ = 0
    for _ in range(_STEPS):
        before = set(play.world)
        play.step()
        play.check()
        if play.over is not None:
            break
        if play.driver.round > round_ and play.phase is Phase.TRAINING:
            # Where a driver was killed there may have been a world between.
            if round_ != 0 and (play.driver.round == round_ + 1 or not play.restarts):
                assert play.world[0] in before | old_rank_0, "rank 0 must have been in the old world"
            round_ = play.driver.round
        old_rank_0 = set(play.world)
    if play.over is None:
        _ends(play)
    assert not play.alive()


def _ends(play: _History) -> None:
    """From here on nothing new happens. Workers do their part: the job trains, or ends by itself."""
    play.unreachable = set()
    play.go_on_with(*play.stopped)
    for number in sorted(play.raised):
        if play.workers[number].alive:
            play.exit(number, 1)
    for _ in range(400):
        if play.over is not None:
            return
        free = [n for n in play.alive() if not play.workers[n].asked]
        if play.phase is Phase.TRAINING and all(play.workers[n].alive for n in play.world):
            waiting = [n for n in play.newcomers() if play.workers[n].reports < 2 and n in free]
            if not waiting:
                break
        moved = False
        for number in free:
            if not play.workers[number].alive or play.workers[number].asked or play.over is not None:
                continue
            worker = play.workers[number]
            if worker.reports == 0:
                play.arrive(number)
                moved = True
            elif worker.round == 0:
                play.ready(number)
                moved = True
            elif play.phase in (Phase.RESET, Phase.FIRST):
                play.ready(number, failed=True)
                moved = True
        if not moved:
            play.wait(1.0)
    else:
        pytest.fail(f"it waits for ever: {play.phase}, {play.driver.describe(play.now)}")
    play.driver.stop("", play.now)
    play.act()
    play.wait(30.0)
    assert play.over is not None
