"""Histories of a job whose ranks are all known, played to its driver without processes and clocks."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from horovod.bootstrap.place.starter import Word, line_of
from horovod.errors import LaunchError
from horovod.launch.contracts.errors import HostsUnreachable
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    Failed,
    Finished,
    HostFacts,
    HostLost,
    HostReached,
    HostRetried,
    Refused,
    Said,
    Started,
    Stopped,
)
from horovod.launch.course.passing import Passing
from horovod.launch.driver.actions import Finish, Kill, Reach, Say, Spoil
from horovod.launch.driver.causes import RankOutcome
from horovod.launch.driver.fixed import FixedDriver, Outcome
from horovod.launch.driver.reaching import Reaching

FACTS = HostFacts("machine", 4)
SILENT = "horovod.errors.PeerLostError: rank 1 on host b is lost: no sign of life for 5 s"


class Play:
    """A driver of two ranks on each of `hosts`, whose time is a number."""

    def __init__(self, hosts: str = "aabb", patience_s: float = 30.0) -> None:
        self.now = 100.0
        self.size = len(hosts)
        self.driver = FixedDriver(dict(enumerate(hosts)), self.size, patience_s, self.now)
        self.ended_with: list[int] = []
        self.kills = 0
        self.texts: list[str] = []
        self.spoiled: list[int] = []
        self.hear(*(Started(rank, 0) for rank in range(self.size)))

    def hear(self, *events: Event) -> None:
        for event in events:
            self.driver.hear(event, self.now)
            self.settle()

    def interrupt(self, signum: int) -> None:
        self.driver.interrupt(signum, self.now)
        self.settle()

    def settle(self) -> None:
        self.driver.settle(self.now)
        actions, self.driver.actions = self.driver.actions, []
        for action in actions:
            match action:
                case Finish(signum):
                    self.ended_with.append(signum)
                case Kill():
                    self.kills += 1
                case Say(text, True):
                    self.texts.append(text)
                case Spoil(_, _, rank):
                    self.spoiled.append(rank)

    def wait(self, seconds: float) -> None:
        """Let time pass, and settle whenever the driver wants to."""
        until = self.now + seconds
        while (due := self.driver.due(self.now)) <= until:
            assert due > self.now or self.driver.actions == [], (
                "it wants to be called again at once, for ever"
            )
            self.now = max(self.now, due)
            self.settle()
            assert self.driver.due(self.now) > self.now, "it wants to be called again at once, for ever"
        self.now = until
        self.settle()

    def outcome(self) -> Outcome:
        self.hear(Finished(()))
        assert self.driver.finished
        return self.driver.outcome(self.now)


def said(rank: int, text: str = "", because: int | None = None, *, in_world: bool = True) -> Said:
    return Said(rank, line_of(Word(in_world=in_world, text=text, because=because)))


def in_world(size: int = 4) -> list[Event]:
    return [said(rank) for rank in range(size)]


@pytest.mark.parametrize(
    ("events", "first"),
    [
        ([Exited(0, 1), Exited(2, -9)], 2),  # 2 was killed, and 0 noticed that
        ([Exited(0, 1), Exited(2, -15)], 0),  # that was us
        ([Exited(0, 1), Exited(2, 3)], 0),
        ([Exited(1, -11), Exited(2, -9)], 1),
        ([said(0, "lost it", 2), Exited(0, 1), Exited(2, 3)], 2),
        ([Exited(0, -15, told=True), Exited(1, 7)], 1),
        ([Exited(0, 0), Exited(1, 7)], 1),
    ],
)
def test_the_first_cause_is_found_in_news_of_any_order(events: list[Event], first: int) -> None:
    play = Play()
    play.hear(*events)
    outcome = play.outcome()
    assert outcome.failure is not None
    assert outcome.failure.rank == first
    assert play.ended_with == [signal.SIGTERM]


def test_a_kill_that_comes_late_was_ours() -> None:
    play = Play()
    play.hear(Exited(0, 1))
    play.wait(1.5)
    play.hear(Exited(2, -9))
    assert (failure := play.outcome().failure) is not None
    assert failure.rank == 0


def test_ranks_of_a_world_get_their_time_and_the_user_hears_of_it() -> None:
    play = Play(patience_s=3.0)
    play.hear(*in_world(), Exited(1, -11))
    play.wait(0.4)
    assert (play.texts, play.ended_with) == ([], [])
    play.wait(0.2)
    assert play.texts == [
        "rank 1 on a was killed by SIGSEGV (status 139); giving the others up to 3 s to notice and end by "
        "themselves"
    ]
    play.wait(2.5)
    assert play.ended_with == [signal.SIGTERM]
    play.wait(1.0)
    assert play.texts[1] == "waiting for 3 ranks (0, 2, 3) to end; SIGKILL follows 5 s after the first signal"
    outcome = play.outcome()
    assert (outcome.failure, outcome.ended, outcome.elapsed_s) == (RankOutcome(1, -11), 3, 0.0)


def test_a_rank_that_has_just_left_its_world_may_say_why() -> None:
    play = Play("aa")
    play.hear(*in_world(2), said(0, in_world=False), Exited(1, 4))
    play.wait(0.9)
    assert play.ended_with == []
    play.wait(0.2)
    assert play.ended_with == [signal.SIGTERM]


def test_a_named_rank_that_has_not_ended_is_the_cause_and_brings_its_status_later() -> None:
    play = Play("aa", patience_s=2.0)
    play.hear(*in_world(2), said(1, "raised ValueError", None), said(0, "lost it", 1), Exited(0, 1))
    play.wait(3.0)
    assert play.ended_with == [signal.SIGTERM]
    play.hear(Exited(1, 5))
    assert play.outcome().failure == RankOutcome(1, 5, "raised ValueError")


@pytest.mark.parametrize(
    ("events", "fails", "ended"),
    [
        ([HostLost("b", (2, 3), "silent"), Exited(0, 1)], None, 2),
        ([Exited(0, 1), HostLost("b", (2, 3), "silent")], 0, 3),
        ([said(0, "raised PeerLostError", 2), Exited(0, 1), HostLost("b", (2, 3), "silent")], None, 2),
    ],
)
def test_a_lost_host_is_the_cause_or_comes_besides(
    events: list[Event], fails: int | None, ended: int
) -> None:
    play = Play()
    play.hear(*(in_world() if isinstance(events[0], Said) else []), *events)
    outcome = play.outcome()
    assert [lost.host for lost in outcome.lost] == ["b"]
    assert (outcome.failure.rank if outcome.failure else None) == fails
    assert outcome.ended == ended
    assert 2 in play.spoiled


@pytest.mark.parametrize(
    ("news", "cause"), [([Stopped(1)], RankOutcome(1, None, SILENT, told_by=0, stopped=True)), ([], None)]
)
def test_a_stopped_rank_is_ended_when_those_that_have_lost_it_end_well(
    news: Sequence[Event], cause: RankOutcome | None
) -> None:
    play = Play("ab", patience_s=2.0)
    play.hear(*in_world(2), *news, said(0, SILENT, 1), Exited(0, 0))
    play.wait(1.9)
    assert play.ended_with == []
    play.wait(0.2)
    assert play.ended_with == ([signal.SIGTERM] if cause else [])
    assert play.outcome().failure == cause


def test_a_rank_that_goes_on_has_the_time_that_it_takes() -> None:
    play = Play("ab", patience_s=2.0)
    play.hear(*in_world(2), Stopped(1), said(0, SILENT, 1), Exited(0, 0), Continued(1))
    play.wait(100.0)
    play.hear(Exited(1, 0))
    assert (play.outcome().failure, play.ended_with) == (None, [])


def test_signals_end_and_kill() -> None:
    play = Play()
    play.interrupt(signal.SIGINT)
    play.hear(Exited(0, 1))
    play.interrupt(signal.SIGTERM)
    outcome = play.outcome()
    assert (play.ended_with, play.kills, outcome.signum) == ([signal.SIGINT], 1, signal.SIGINT)
    assert (outcome.failure, outcome.ended) == (None, 4)
    assert play.texts[0] == "SIGINT received: ending 4 ranks; a second one kills them"


def test_signal_after_all_ranks_have_ended_names_no_number_of_them() -> None:
    play = Play("a")
    play.hear(Exited(0, 0))
    play.interrupt(signal.SIGINT)
    assert play.texts == ["SIGINT received: ending what is left of the job; a second one kills it"]


def test_a_failure_that_is_looked_into_wins_over_a_signal() -> None:
    play = Play()
    play.hear(*in_world(), Exited(2, 3))
    play.interrupt(signal.SIGINT)
    outcome = play.outcome()
    assert (play.ended_with, outcome.signum) == ([signal.SIGTERM], None)
    assert (outcome.failure.rank if outcome.failure else None) == 2


def test_errors_of_the_launcher_count_where_nothing_else_does() -> None:
    broken, no_word = LaunchError("broken"), LaunchError("no word of it")
    cases: list[tuple[list[Event], LaunchError | None]] = [
        ([Failed(broken), Exited(1, 7), Finished(())], broken),
        ([Exited(0, -15, told=True), Finished((), no_word)], no_word),
        ([Exited(1, 7), Finished((), no_word)], None),
        ([Refused(1, 2), Finished((), no_word)], None),
    ]
    for events, error in cases:
        play = Play()
        play.hear(*events)
        assert play.driver.outcome(play.now).error is error


def reaching() -> FixedDriver:
    hosts = Reaching(("a", "b", "c"), 2, 30.0, 100.0)
    driver = FixedDriver({0: "a", 1: "b", 2: "c"}, 3, 1.0, 100.0, reaching=hosts)
    assert driver.actions == [Reach("a"), Reach("b"), Reach("c")]
    driver.hear(HostReached("a", FACTS), 100.0)
    driver.settle(100.0)
    return driver


def test_workers_are_started_when_all_hosts_have_been_reached() -> None:
    driver = reaching()
    assert (driver.ready, driver.reached, driver.due(101.0)) == (False, 1, 130.0)
    driver.hear(HostRetried("c", "refused"), 101.0)
    driver.hear(HostReached("c", FACTS), 101.0)
    driver.hear(HostReached("b", FACTS), 102.0)
    driver.settle(102.0)
    assert (driver.ready, driver.finished) == (True, False)
    assert list(driver.begin(103.0)) == ["a", "b", "c"]
    assert (driver.ready, driver.began_at) == (False, 103.0)


def test_hosts_that_cannot_be_reached_are_named_when_all_are_known_or_time_is_over() -> None:
    cases: list[tuple[list[Event], int, list[str]]] = [
        ([HostRetried("b", "refused")], 124, ["2 of 2", "b: no answer within 30 s", "before that: refused"]),
        ([HostLost("b", (), "no key")], 1, ["2 of 2", "b: no key", "c: no answer within 30 s"]),
        ([HostReached("c", FACTS), HostLost("b", (), "no key")], 1, ["one host:", "b: no key"]),
    ]
    for events, status, said in cases:
        driver = reaching()
        for event in events:
            driver.hear(event, 101.0)
        driver.settle(101.0 if len(events) == 2 else 130.0)
        error = driver.outcome(130.0).error
        assert driver.finished
        assert isinstance(error, HostsUnreachable)
        assert error.exit_code == status
        assert all(each in str(error) for each in said)


def test_a_signal_while_hosts_are_awaited_ends_the_job_at_once() -> None:
    driver = reaching()
    driver.interrupt(signal.SIGINT, 101.0)
    error = driver.outcome(101.0).error
    assert (driver.finished, driver.ready) == (True, False)
    assert str(error) == "a signal ended the job while these hosts were awaited: b, c."


@pytest.mark.parametrize("seed", range(300))
def test_a_random_history_ends_with_one_cause(seed: int) -> None:
    chance = random.Random(seed)
    play = Play("aabbc"[: chance.randint(1, 5)], chance.choice([0.0, 1.0, 5.0]))
    left = set(range(play.size))
    refused = False
    if chance.random() < 0.7:
        play.hear(*in_world(play.size))
    while left:
        rank = chance.choice(sorted(left))
        match chance.randint(0, 8):
            case 0:
                play.hear(said(rank, "raised", chance.choice([None, *range(play.size)])))
            case 1:
                play.hear(said(rank, in_world=False))
            case 2:
                play.hear(Stopped(rank))
            case 3:
                play.hear(Continued(rank))
            case 4 if chance.random() < 0.2:
                host = play.driver.hosts_of[rank]
                there = tuple(each for each in sorted(left) if play.driver.hosts_of[each] == host)
                left -= set(there)
                play.hear(HostLost(host, there, "silent"))
            case 5 if chance.random() < 0.2:
                play.interrupt(signal.SIGTERM)
            case 6 if chance.random() < 0.1:
                refused, left = True, left - {rank}
                play.hear(Refused(rank, 2))
            case 7 if chance.random() < 0.5:
                play.wait(chance.choice([0.1, 1.0, 10.0]))
            case _:
                left.discard(rank)
                play.hear(Exited(rank, chance.choice([0, 0, 1, 3, -9, -15]), told=chance.random() < 0.1))
    outcome = play.outcome()
    causes = [outcome.failure, outcome.refused, outcome.error, outcome.signum]
    assert sum(cause is not None for cause in causes) <= 1
    assert len(play.ended_with) <= 1
    assert play.ended_with or not (any(cause is not None for cause in causes) or outcome.lost or refused)


def test_signal_when_no_rank_is_left_or_was_started_goes_to_none() -> None:
    told: list[str] = []
    signals: Any = SimpleNamespace(passing=[signal.SIGUSR1])
    console: Any = SimpleNamespace(tell=told.append)
    passing = Passing(signals, console, lambda signum: None)
    passing.forward(())
    passing.leave((0,))
    signals.passing.append(signal.SIGUSR1)
    passing.forward(())
    assert told == [
        "SIGUSR1 goes to no rank: none has been started yet",
        "SIGUSR1 goes to no rank: all have ended",
    ]
