"""The driver of elastic jobs: workers that are stopped, and which of them are killed."""

from __future__ import annotations

import math

import pytest
from tests.unit.elastic.play import Play

from horovod.launch.elastic.rules import Phase


def test_a_silent_member_that_others_have_lost_is_killed() -> None:
    play = Play(1, lost_s=10.0)
    play.begin(a=1, b=1)
    play.stubborn = {1}
    play.ready(0, failed=True, because=1)
    play.wait(9.0)
    assert play.alive() == [0, 1]
    play.wait(2.0)
    assert 1 in play.killed
    assert play.world == [0]


@pytest.mark.parametrize("code", [1, 0], ids=["raised", "caught"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_silent_member_that_others_have_lost_and_ended_for_is_killed(code: int, restarted: bool) -> None:
    """Nobody waits for another world: without it the driver would wait for the silent one for ever."""
    play = Play(1, lost_s=10.0)
    play.begin(a=1, b=1)
    play.stubborn = {1}
    play.exit(0, code, lost=1)
    assert play.alive() == [1]
    if restarted:
        play.restart()
    play.wait(0.5)
    assert play.killed == [1]
    assert play.over is not None
    assert play.over.failed is not None
    assert play.over.failed.rank == (0 if code else 1)  # the first that has failed
    assert [log.text for log in play.logs if log.event == "killed"] == [
        "rank 1 on b is ended: others have lost it, and it has not been heard of for 10 s"
    ]


def test_a_member_that_others_have_lost_for_its_silence_is_killed_at_once() -> None:
    """They have waited for it already."""
    play = Play(1, lost_s=60.0)
    play.begin(a=1, b=1)
    play.ready(0, failed=True, because=1, silent=True)
    assert play.killed == []
    assert play.doubted == ["b"]
    play.wait(0.5)
    assert play.killed == [1]
    assert play.world == [0]


def test_a_member_that_was_silent_and_goes_on_just_then_stays() -> None:
    play = Play(1, lost_s=60.0)
    play.begin(a=1, b=1)
    play.ready(0, failed=True, because=1, silent=True)
    play.wait(0.2)
    play.ready(1, failed=True, because=0)
    assert play.killed == []
    assert play.world == [0, 1]


def test_a_host_that_is_off_costs_no_further_time() -> None:
    """The launcher has not heard it, either: the other ranks there are not waited for."""
    play = Play(1, lost_s=60.0)
    play.begin(a=1, b=2)
    play.off = {"b"}
    play.ready(0, failed=True, because=2, silent=True)
    assert play.doubted == ["b"]
    assert play.world == [0]


def test_a_process_whose_end_nobody_hears_of_is_not_waited_for() -> None:
    """The connection with its host is still believed in."""
    play = Play(1, lost_s=60.0, exit_s=0.5)
    play.begin(a=1, b=1)
    play.ready(0, failed=True, because=1, silent=True)
    play.off = {"b"}
    play.wait(1.0)
    assert play.world == [0]
    assert "rank 1 on b gives no sign of life" in [log.text for log in play.logs if log.event == "left"]
    assert play.alive() == [0, 1]
    play.lose("b")
    assert play.alive() == [0]
    assert play.awaits(Phase.TRAINING)


def test_where_silence_has_no_limit_nobody_is_ended_for_it() -> None:
    play = Play(1, lost_s=math.inf, by_slot=True)
    play.begin(a=3)
    play.stop(1)
    play.exit(2, -9)
    play.ready(0, failed=True, because=2)
    play.wait(3600.0)
    assert play.killed == []
    play.go_on_with(1)
    play.ready(1, failed=True, because=2)
    assert play.world == [0, 1]


def test_a_member_that_ends_by_itself_lets_the_others_compute() -> None:
    play = Play(1, lost_s=10.0)
    play.begin(a=1, b=1)
    play.exit(0, 1)
    play.wait(1000.0)
    assert play.alive() == [1]


def test_a_member_that_was_stopped_on_its_way_is_killed() -> None:
    """Nobody names it: it has left the world with the others, and was stopped before it could report."""
    play = Play(1, lost_s=10.0, by_slot=True)
    play.begin(a=2, b=1)
    play.exit(2, -9)
    play.stop(1)
    play.wait(100.0)
    assert play.alive() == [0, 1]  # nobody waits for it
    play.ready(0, failed=True, because=2)
    assert play.alive() == [0, 1]  # it may be about to go on
    play.wait(0.5)
    assert play.killed == [1]
    assert play.world == [0]
    killed = [log for log in play.logs if log.event == "killed"]
    assert [log.text for log in killed] == [
        "rank 1 on a is ended: its process is stopped by a signal or frozen for 10 s, and others wait for it"
    ]


def test_a_member_that_was_stopped_lately_may_go_on() -> None:
    play = Play(1, lost_s=10.0, by_slot=True)
    play.begin(a=2, b=1)
    play.exit(2, -9)
    play.stop(1)
    play.wait(4.0)
    play.ready(0, failed=True, because=2)
    play.wait(5.5)
    assert play.alive() == [0, 1]
    play.wait(1.0)
    assert play.killed == [1]


def test_a_member_that_was_stopped_and_lost_is_killed_once() -> None:
    play = Play(1, lost_s=10.0)
    play.begin(a=1, b=1)
    play.stop(1)
    play.stubborn = {1}
    play.ready(0, failed=True, because=1)
    play.wait(30.0)
    assert play.killed == [1]
    assert [log.event for log in play.logs].count("killed") == 1


def test_a_member_that_was_stopped_for_a_while_is_waited_for() -> None:
    play = Play(1, lost_s=10.0, by_slot=True)
    play.begin(a=2, b=1)
    play.exit(2, -9)
    play.ready(0, failed=True, because=2)
    for _ in range(3):
        play.stop(1)
        play.wait(9.0)
        play.go_on_with(1)
    play.wait(600.0)
    assert play.killed == []
    play.ready(1, failed=True, because=2)
    assert play.world == [0, 1]


def test_a_member_that_was_stopped_while_it_waits_is_killed_before_the_next_world() -> None:
    """Placed there, it would hold up all others until they give up."""
    play = Play(1, lost_s=10.0, by_slot=True)
    play.begin(a=3)
    play.ready(1, failed=True)
    play.stop(1)
    play.ready(0, 2, failed=True)
    assert play.awaits(Phase.RESET)
    assert "1 on a, which a signal has stopped" in play.driver.describe(play.now)
    play.wait(11.0)
    assert play.killed == [1]
    assert len(play.world) == 2


def test_where_all_were_stopped_nobody_is_killed() -> None:
    play = Play(1, lost_s=10.0, by_slot=True)
    play.begin(a=2)
    play.ready(0)
    play.stop(0, 1)
    play.wait(600.0)
    assert play.killed == []
    play.go_on_with(0, 1)
    play.ready(1)
    assert play.world == [0, 1]


def test_a_stopped_spare_is_passed_over() -> None:
    play = Play(2, most=2, spares=2, by_slot=True)
    play.begin(a=4)
    spares = play.newcomers()
    play.arrive(*spares)
    play.ready(*spares)
    play.stop(2)
    play.exit(1, -9)
    play.ready(0, failed=True)
    assert play.world == [0, 3]
    assert play.killed == []
    play.go_on_with(2)
    play.exit(3, -9)
    play.ready(0, failed=True)
    assert play.world == [0, 2]


def test_a_stopped_newcomer_that_is_needed_is_killed() -> None:
    play = Play(2, lost_s=10.0, cooldown_s=(1.0, 1.0), by_slot=True)
    play.begin(a=2)
    play.exit(1, -9)
    play.ready(0, failed=True)
    play.wait(5.0)
    (newcomer,) = play.newcomers()
    play.stop(newcomer)
    play.wait(20.0)
    assert play.killed == [newcomer]
    (another,) = play.newcomers()
    play.arrive(another)
    play.ready(another)
    assert play.world == [0, another]


def test_a_stopped_newcomer_is_no_reason_to_leave_a_world() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(a=2)
    play.arrive(1)
    play.stop(1)
    play.wait(600.0)
    assert play.killed == []
    assert play.notified == []
    play.go_on_with(1)
    play.ready(1)
    assert len(play.notified) == 1


def test_a_member_that_computes_is_waited_for() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    play.ready(0)
    play.wait(1000.0)
    assert play.alive() == [0, 1]
    assert any("waiting for rank 1 on b" in log.text for log in play.logs)
