"""The driver of elastic jobs: workers and hosts that will be taken away."""

from __future__ import annotations

from tests.unit.elastic.play import Play, hosts_of

from horovod.bootstrap.store.membership import HostUpdateResult, Leaving
from horovod.launch.elastic.rules import Phase


def test_a_worker_that_will_be_taken_away_leaves_at_the_next_commit() -> None:
    play = Play(1)
    play.begin(a=2, b=1)
    play.driver.leaving(0, Leaving("SIGTERM", host=False), play.now)
    play.act()
    assert play.notified == [HostUpdateResult.removed]
    assert play.alive() == [0, 1, 2]
    play.ready(0, 1, 2)
    assert play.workers[0].dismissed
    assert play.world == [1, 2]
    assert play.newcomers() == []  # nobody takes the slot
    assert not play.hosts.is_blacklisted("a")
    play.wait(301.0)
    assert hosts_of(play, play.newcomers()) == ["a"]


def test_a_host_that_will_be_taken_away_leaves_as_a_whole() -> None:
    play = Play(1)
    play.begin(a=2, b=1)
    play.driver.leaving(1, Leaving("the file x is there", host=True), play.now)
    play.driver.leaving(0, Leaving("the file x is there", host=True), play.now)
    play.act()
    assert play.notified == [HostUpdateResult.removed]
    play.ready(0, 1, 2)
    assert play.world == [2]
    play.discover(b=1)
    play.discover(a=2, b=1)  # it has come back
    assert hosts_of(play, play.newcomers()) == ["a", "a"]


def test_a_worker_that_leaves_below_the_minimum_is_waited_for() -> None:
    play = Play(2, slots_wait_s=100.0)
    play.begin(a=1, b=1)
    play.driver.leaving(0, Leaving("SIGTERM", host=False), play.now)
    play.act()
    play.ready(0, 1)
    assert play.awaits(Phase.SHORT)
    play.discover(a=1, b=1, c=1)
    play.arrive(2)
    play.ready(2)
    assert hosts_of(play, play.world) == ["b", "c"]


def test_a_shortage_names_slots_that_are_left_out() -> None:
    play = Play(3, slots_wait_s=100.0)
    play.begin(a=3)
    play.driver.leaving(0, Leaving("SIGTERM", host=False), play.now)
    play.act()
    play.exit(1, 1)
    play.ready(0, 2, failed=True)
    assert play.awaits(Phase.SHORT)
    play.wait(40.0)
    (waiting,) = [log.text for log in play.logs if log.event == "waiting"]
    assert "Slot 0 of a was announced to go and is left out for 2" in waiting
    play.wait(61.0)
    assert play.over is not None
    assert "3 slots needed, 1 there (a:1), for 100 s" in play.over.error
    assert "Slot 1 of a has failed and is left out for good." in play.over.error
    assert "Slot 0 of a was announced to go and is left out for" in play.over.error


def test_all_leave() -> None:
    play = Play(1)
    play.begin(a=2)
    play.driver.leaving(0, Leaving("SIGTERM", host=True), play.now)
    play.act()
    play.ready(0, 1)
    assert play.over is not None
    assert "nobody is left who has the state" in play.over.error


def test_a_newcomer_that_will_be_taken_away_is_ended() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(a=1, b=1)
    play.driver.leaving(1, Leaving("SIGTERM", host=False), play.now)
    play.act()
    assert play.killed == [1]
    assert play.notified == []
    said = [log.text for log in play.logs if log.event == "leaving"]
    assert said == ["the worker in slot 0 of b will be taken away: SIGTERM"]  # it is no rank yet


def test_a_host_that_is_listed_off_and_on_is_told_once_until_it_counts() -> None:
    play = Play(1, processes=2)
    play.discover(a=1)

    def passing() -> list[str]:
        return [log.text for log in play.logs if log.event == "passing"]

    for _ in range(3):
        play.driver.discovered({"a": 1}, play.now, ("b",))
        play.driver.discovered({"a": 1}, play.now)
        play.act()
    assert passing() == ["host b is listed off and on: it counts once it was listed twice in a row"]
    play.wait(31.0)  # a slot is missing: the reason is among those that are told
    assert "Host b is listed off and on" in next(log.text for log in play.logs if log.event == "waiting")
    play.discover(a=1, b=1)
    play.discover(a=1)
    play.driver.discovered({"a": 1}, play.now, ("b",))
    play.act()
    assert len(passing()) == 2


def test_what_a_new_slot_waits_for_is_told() -> None:
    play = Play(1, most=4, spares=1)
    play.begin(a=1)
    play.discover(a=2, b=3)
    assert [log.text for log in play.logs if log.event == "newcomers"] == [
        "starting a worker on a; it joins at the next commit",
        "starting 2 workers on b; they join at the next commit",  # the third one is a spare
    ]
