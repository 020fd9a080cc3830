"""The driver of elastic jobs, in histories that are written down: hosts and workers come and go."""

from __future__ import annotations

import math

import pytest
from tests.unit.elastic.play import Play, hosts_of

from horovod.bootstrap.store.membership import Assigned, Expected, HostUpdateResult
from horovod.errors import ConfigError
from horovod.launch.elastic.rules import Phase, Rules
from horovod.wordings import RANKS_FAILED


def test_the_first_world_takes_all_slots() -> None:
    play = Play(2, processes=3)
    play.discover(a=2)
    assert play.awaits(Phase.SLOTS)
    assert not play.workers
    play.discover(a=2, b=2)
    assert [worker.expected for worker in play.workers.values()] == [
        (0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2), (2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)
    ]  # fmt: skip
    play.arrive(0, 1, 2)
    assert not play.workers[0].answers
    play.arrive(3)
    assert [play.workers[number].place for number in range(4)] == [
        worker.expected for worker in play.workers.values()
    ]
    assert play.awaits(Phase.TRAINING)
    assert play.driver.resets == 0


def test_most_is_never_exceeded() -> None:
    play = Play(1, most=3)
    play.begin(a=2, b=8)
    assert play.size() == 3
    play.discover(a=2, b=9, c=4)
    assert len(play.workers) == 3
    assert play.notified == []


def test_the_first_start_waits_for_hosts_that_are_being_reached() -> None:
    play = Play(1)
    play.unreachable = {"b"}
    play.discover(a=1, b=1)  # b is known not to be there at once
    assert len(play.workers) == 1


def test_too_few_slots_are_an_error_that_says_who_is_missing() -> None:
    play = Play(4, slots_wait_s=60.0)
    play.unreachable = {"b"}
    play.discover(a=2, b=2)
    play.wait(59.0)
    assert not play.is_over()
    assert any("4 slots needed, 2 there (a:2)" in log.text for log in play.logs)
    play.wait(2.0)
    assert play.over is not None
    assert "Timed out waiting for minimum number of slots to become available" in play.over.error
    assert "4 slots needed, 2 there (a:2)" in play.over.error
    assert play.over.error.endswith("Host b is being reached: no route. Try it by hand.")


def test_an_unreachable_host_is_tried_again() -> None:
    play = Play(2)
    play.unreachable = {"a"}
    play.discover(a=2)
    play.wait(1.0)
    assert not play.workers
    play.unreachable = set()
    play.wait(2.0)
    assert len(play.workers) == 2


def test_fixed_hosts_that_are_too_few_fail_at_once() -> None:
    play = Play(3, fixed_hosts=True)
    play.discover(a=2)
    assert play.over is not None
    assert "3 slots needed" in play.over.error


def test_discovery_that_fails_first_ends_the_job() -> None:
    play = Play(1)
    play.driver.discovery_failed("The script is not there.", play.now)
    play.act()
    assert play.over is not None
    assert play.over.error == "The script is not there."


def test_discovery_that_fails_later_is_told() -> None:
    play = Play(1)
    play.begin(a=1)
    play.driver.discovery_failed("It broke.", play.now)
    play.act()
    assert play.awaits(Phase.TRAINING)
    assert play.logs[-1].text == "It broke. The hosts stay a:1."


def test_a_failed_worker_costs_its_host() -> None:
    play = Play(2, processes=4)
    play.begin(a=2, b=2)
    play.exit(0, 1)
    assert play.spoiled[-1].round == 1
    assert play.awaits(Phase.RESET)
    play.ready(1, 2, failed=True, because=0)
    assert play.awaits(Phase.RESET)  # rank 3 has not noticed
    play.ready(3, failed=True, because=0)
    assert play.awaits(Phase.TRAINING)
    assert play.world == [2, 3]
    assert [play.workers[number].place for number in (2, 3)] == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]
    assert play.killed == [1]
    assert play.dropped == ["a"]
    assert play.driver.resets == 1
    play.wait(10_000.0)
    assert len(play.workers) == 4  # it never comes back


def test_a_failed_worker_on_the_only_host_costs_its_slot() -> None:
    play = Play(1, processes=3)
    play.begin(a=3)
    play.exit(0, -9)
    play.ready(1, 2, failed=True, because=0)
    assert play.world == [1, 2]
    assert [play.workers[number].place for number in (1, 2)] == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]


def test_a_slot_comes_back_after_its_cool_down_and_rank_0_stays() -> None:
    play = Play(1, processes=2, cooldown_s=(10.0, 100.0))
    play.begin(a=2)
    play.exit(0, 1)
    play.ready(1, failed=True)
    assert play.world == [1]
    play.wait(24.0)
    assert play.newcomers() == []
    play.wait(2.0)  # min(100, 10 * 2 + 0.5 * 10) = 25 s
    (newcomer,) = play.newcomers()
    assert play.workers[newcomer].expected == (
        1,
        2,
        0,
        2,
        0,
        1,
    )  # the device of slot 0 is free, not that of 1
    play.arrive(newcomer)
    play.ready(newcomer)
    assert play.notified == [HostUpdateResult.added]
    play.ready(1)
    assert play.workers[1].place == (0, 2, 1, 2, 0, 1)
    assert play.workers[newcomer].place == (1, 2, 0, 2, 0, 1)


def test_survivors_train_on_until_newcomers_are_ready() -> None:
    play = Play(2)
    play.begin(a=2)
    play.discover(a=2, b=2)
    assert play.newcomers() == [2, 3]
    assert play.notified == []
    play.arrive(2)
    assert play.workers[2].answers == [Expected((2, 4, 0, 2, 1, 2), 1)]
    play.ready(2)
    assert play.notified == []  # the other one is on its way
    play.arrive(3)
    play.ready(3)
    assert play.notified == [HostUpdateResult.added]
    play.ready(0)
    play.ready(1)
    assert play.world == [0, 1, 2, 3]
    assert play.size() == 4


def test_a_slow_newcomer_does_not_keep_others_out() -> None:
    play = Play(2, gather_s=5.0)
    play.begin(a=2)
    play.discover(a=2, b=2)
    play.arrive(2, 3)
    play.ready(2)
    play.wait(4.9)
    assert play.notified == []
    play.wait(0.2)
    assert play.notified == [HostUpdateResult.added]
    play.ready(0, 1)
    assert play.world == [0, 1, 2]
    play.ready(3)
    assert play.notified == [HostUpdateResult.added] * 2


def test_a_removed_host_is_left_at_the_next_commit() -> None:
    play = Play(1)
    play.begin(a=2, b=2)
    play.discover(b=2)
    assert play.notified == [HostUpdateResult.removed]
    assert play.alive() == [0, 1, 2, 3]  # nobody is ended before
    play.ready(0, 1, 2, 3)
    assert play.workers[0].dismissed
    assert play.world == [2, 3]
    assert play.dropped == ["a"]
    assert play.size() == 2


def test_fewer_slots_remove_the_last_ones() -> None:
    play = Play(1)
    play.begin(a=3)
    play.discover(a=1)
    assert play.notified == [HostUpdateResult.removed]
    play.ready(0, 1, 2)
    assert play.world == [0]


def in_step(play: Play) -> bool:
    """What members of the present world were told."""
    told = {play.workers[number].answers[-1] for number in play.world}
    (one,) = {answer.in_step for answer in told if isinstance(answer, Assigned)}
    return one


def test_members_of_a_world_that_only_shrinks_are_in_step() -> None:
    play = Play(1)
    play.begin(a=2, b=1)
    assert not in_step(play)
    play.discover(a=2)
    play.ready(0, 1, 2)
    assert in_step(play)


def test_with_a_newcomer_they_are_not() -> None:
    """Rank 0 heard of the removal; the newcomer was ready before the last member was."""
    play = Play(1)
    play.begin(a=2, b=1)
    play.discover(a=2, b=2)
    play.arrive(3)
    play.discover(a=1, b=2)
    assert play.notified == [1]
    play.ready(0, 1)
    play.ready(3)
    play.ready(2)
    assert sorted(play.world) == [0, 2, 3]
    assert not in_step(play)


def test_with_one_that_failed_there_they_are_not() -> None:
    play = Play(1)
    play.begin(a=2, b=1)
    play.discover(a=2)
    play.ready(0)
    play.ready(1, failed=True)
    play.exit(2, -9)
    assert play.world == [0, 1]
    assert not in_step(play)


def test_with_one_that_was_never_in_it_they_are_not() -> None:
    play = Play(1)
    play.begin(a=2, b=1)
    play.discover(a=2)
    play.ready(0, 1, 2)
    play.ready(0)
    play.ready(1, formed=False)
    assert not in_step(play)


def test_a_member_that_never_got_the_state_is_a_newcomer() -> None:
    """Its host comes first, and yet another one is rank 0."""
    play = Play(1, by_slot=True, cooldown_s=(1.0, 1.0))
    play.begin(a=1, b=2)
    play.exit(0, -9)
    play.ready(1, 2, failed=True, synced=True)
    play.wait(1.0)
    play.arrive(3)
    play.ready(3)
    play.ready(1, 2, synced=True)
    assert play.world == [1, 2, 3]
    play.exit(2, -9)
    play.ready(1, failed=True, synced=True)
    play.ready(3, failed=True)
    assert play.world == [1, 3]


def test_members_that_never_got_the_state_come_before_other_newcomers() -> None:
    play = Play(1, most=2, spares=1, by_slot=True)
    play.begin(a=1, b=2)
    play.ready(2)
    play.ready(0, failed=True, synced=True)
    play.ready(1, failed=True)
    assert play.world == [0, 1]


def test_without_anybody_who_has_the_state_the_job_fails() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(a=1, b=1)
    play.arrive(1)
    play.ready(1)
    play.ready(0, synced=True)
    assert play.world == [0, 1]
    play.exit(0, -9)
    play.ready(1, failed=True)
    assert play.over is not None
    assert "nobody is left who has the state" in play.over.error


def test_hosts_that_vanish_all_at_once_are_waited_for() -> None:
    """A discovery that says nothing for a while costs a pause."""
    play = Play(1, slots_wait_s=60.0)
    play.begin(a=2)
    play.discover()
    play.ready(0, 1, synced=True)
    play.wait(30.0)
    assert play.over is None
    play.discover(a=2)
    assert play.world == [0, 1]
    assert play.driver.round == 2
    assert in_step(play)


def test_hosts_that_vanish_for_too_long_are_an_error() -> None:
    play = Play(1, slots_wait_s=60.0)
    play.begin(a=2)
    play.discover()
    play.ready(0, 1, synced=True)
    play.wait(61.0)
    assert play.over is not None
    assert "1 slot needed, 0 there, for 60 s" in play.over.error


def test_a_removed_and_an_added_host_at_once() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    play.discover(b=1, c=1)
    assert play.notified == [HostUpdateResult.removed]
    play.arrive(2)
    play.ready(2)
    assert play.notified[-1] == HostUpdateResult.mixed
    play.ready(0, 1)
    assert hosts_of(play, play.world) == ["b", "c"]


def test_below_the_minimum_survivors_wait_for_newcomers() -> None:
    play = Play(2)
    play.begin(a=1, b=1)
    play.discover(a=1, b=1, c=1)
    play.exit(0, 1)
    play.ready(1, failed=True)
    assert play.awaits(Phase.SHORT)
    play.arrive(2)
    assert isinstance(play.workers[2].answers[-1], Expected)
    play.ready(2)
    assert play.awaits(Phase.TRAINING)
    assert hosts_of(play, play.world) == ["b", "c"]


def test_below_the_minimum_for_too_long_is_an_error() -> None:
    play = Play(2, slots_wait_s=100.0)
    play.begin(a=1, b=1)
    play.exit(0, 1)
    play.ready(1, failed=True)
    play.wait(99.0)
    assert not play.is_over()
    play.wait(2.0)
    assert play.over is not None
    assert "2 slots needed" in play.over.error
    assert "Host a has failed and is left out for good" in play.over.error
    assert f"The last failure: rank 0 on a exited with status 1. {RANKS_FAILED}." in play.over.error


def test_how_long_a_newcomer_prepares_is_its_own_affair() -> None:
    play = Play(2, slots_wait_s=100.0)
    play.begin(a=1, b=1)
    play.discover(a=1, b=1, c=1)
    play.exit(0, 1)
    play.ready(1, failed=True)
    play.arrive(2)
    play.wait(10_000.0)
    assert play.over is None
    assert sum("waiting for 1 worker to be ready" in log.text for log in play.logs) > 100


def test_spares_take_over_at_once() -> None:
    play = Play(1, processes=2, most=2, spares=1, by_slot=True)
    play.begin(a=2, b=1)
    assert play.newcomers() == [2]
    assert play.workers[2].expected[1] == 2
    play.arrive(2)
    play.ready(2)
    assert play.notified == []  # there is no room for it
    play.exit(1, -9)
    play.ready(0, failed=True)
    assert play.awaits(Phase.TRAINING)
    assert hosts_of(play, play.world) == ["a", "b"]


def test_spares_keep_the_number_of_ranks() -> None:
    play = Play(2, processes=2, most=2, spares=1)
    play.begin(a=1, b=1, c=1)
    play.arrive(2)
    play.ready(2)
    play.exit(0, -9)
    play.ready(1, failed=True)
    assert hosts_of(play, play.world) == ["b", "c"]
    assert play.size() == 2


def test_stopping_ends_all() -> None:
    play = Play(1)
    play.begin(a=2)
    play.discover(a=2, b=1)
    play.driver.stop("SIGINT ended the job.", play.now)
    play.act()
    assert play.over is not None
    assert play.over.error == "SIGINT ended the job."


def test_news_have_numbers_that_a_new_world_knows() -> None:
    play = Play(1)
    play.begin(a=1, b=1, c=1)
    play.discover(a=1, b=1)
    play.ready(0, 1, 2)
    answer = play.workers[0].answers[-1]
    assert isinstance(answer, Assigned)
    assert answer.news == 1


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ({"processes": 1, "least": 2}, "--min-np 2 is more than -np 1"),
        ({"processes": 4, "least": 2, "most": 3}, "--max-np 3 is less than -np 4"),
        ({"processes": 1, "least": 0}, "needs one rank at least"),
        ({"processes": 1, "least": 1, "cooldown_s": (0.5, 3.0)}, "must lie within 1 to 3600"),
        ({"processes": 1, "least": 1, "cooldown_s": (1.0, 3601.0)}, "must lie within 1 to 3600"),
    ],
)
def test_rules_that_contradict_each_other(numbers: dict[str, float], what: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=what):
        Rules(**numbers)  # type: ignore[arg-type]


def test_nothing_is_due_while_all_is_well() -> None:
    play = Play(1)
    play.begin(a=1)
    assert play.driver.due() == math.inf


def test_a_slot_is_free_when_nothing_of_its_worker_runs_any_more() -> None:
    play = Play(1, cooldown_s=(1.0, 1.0))
    play.begin(a=1, b=1)
    play.workers[1].alive = False
    play.driver.exited(1, 1, play.now)  # what it has started holds the device
    play.act()
    play.ready(0, failed=True)
    play.wait(5.0)
    assert play.newcomers() == []
    play.driver.gone(1, play.now)
    play.act()
    assert hosts_of(play, play.newcomers()) == ["b"]


def test_newcomers_that_count_at_once_are_members_from_their_start() -> None:
    play = Play(2, at_once=True, by_slot=False)
    assert play.begin(a=2) == [0, 1]
    play.discover(a=2, b=2)
    assert play.notified == [HostUpdateResult.added]
    assert play.newcomers() == [], "nothing is started beside a world"
    play.ready(0)
    play.ready(1)
    assert play.world == [0, 1, 2, 3]
    assert [play.workers[number].place for number in (0, 1)] == [(0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2)]
    assert [play.workers[number].expected for number in (2, 3)] == [(2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)]
    play.arrive(2, 3)
    assert [play.workers[number].place for number in (2, 3)] == [(2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)]
    assert play.awaits(Phase.TRAINING)


def test_a_newcomer_that_comes_when_its_world_is_being_left_waits_for_the_next() -> None:
    play = Play(1, at_once=True, by_slot=False)
    play.begin(a=1)
    play.discover(a=1, b=1)
    play.ready(0)
    play.ready(0, failed=True)
    play.arrive(1)
    assert play.size() == 2
    assert play.driver.round == 3


def test_a_change_that_is_taken_back_is_told_if_newcomers_count_at_once() -> None:
    play = Play(1, at_once=True, by_slot=False)
    play.begin(a=1)
    play.discover(a=1, b=1)
    play.discover(a=1)
    play.discover(b=1)
    assert play.notified == [HostUpdateResult.added, HostUpdateResult.removed, HostUpdateResult.mixed]


@pytest.mark.parametrize("success_s", [None, 5.0])
def test_after_a_success_the_others_are_waited_for(success_s: float | None) -> None:
    play = Play(2, success_s=success_s)
    play.begin(a=2)
    play.exit(0, 0)
    play.wait(4.9)
    assert play.alive() == [1]
    play.wait(0.2)
    assert play.alive() == ([1] if success_s is None else [])
    assert (play.over is None) == (success_s is None)


def test_rank_0_is_told_again_until_it_acts() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    play.discover(a=1)
    assert len(play.notified) == 1
    play.wait(4.9)
    assert len(play.notified) == 1
    play.wait(0.2)
    assert len(play.notified) == 2  # the first time it was between two worlds
    play.wait(3600.0)
    assert 50 < len(play.notified) < 80
    assert sum(log.event == "notified" for log in play.logs) == 1
    play.ready(0, 1)
    told = len(play.notified)
    play.wait(3600.0)
    assert len(play.notified) == told


def test_a_second_program_in_all_slots_begins_anew() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    play.discover(a=1, b=1, c=1)
    play.arrive(2)
    play.ready(2)
    play.ready(0, 1, synced=True)
    assert play.size() == 3
    for _ in range(8):
        round_ = play.driver.round
        play.arrive(*play.world)  # "train && evaluate": nobody has the state of the first
        assert play.phase is Phase.TRAINING
        assert play.driver.round == round_ + 1
        assert play.size() == 3
    assert play.over is None


def test_a_second_program_in_one_slot_takes_over_the_state() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    play.arrive(0)
    play.ready(1, failed=True, because=0, synced=True)
    assert play.world == [1, 0]  # who has the state is rank 0
    assert play.size() == 2
