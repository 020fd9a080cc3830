"""The driver of elastic jobs: workers and hosts fail, or end before the others."""

from __future__ import annotations

import pytest
from tests.unit.elastic.play import Play, hosts_of

from horovod.bootstrap.store.membership import Leaving, Report
from horovod.launch.elastic.rules import Phase
from horovod.wordings import too_many_resets


def test_a_rank_that_ends_well_and_never_came_fails_the_job_of_those_that_wait() -> None:
    play = Play(1, processes=3)
    play.discover(a=1, b=2)
    play.arrive(0)
    play.exit(1, 0)
    assert play.logs[-1].text == "rank 1 on b exited with status 0 and has never called hvd.init()"
    assert not play.is_over()
    play.arrive(2)
    assert play.over is not None
    assert play.over.error == (
        "No world can be formed: rank 1 on b ended with status 0 and never called hvd.init(), while "
        "ranks 0, 2 on a, b waited there. Nothing was trained. Does the script end early on some ranks, or "
        "is it another one on some hosts?"
    )


def test_a_rank_that_fails_beside_one_that_never_came_is_the_reason() -> None:
    play = Play(1, processes=3)
    play.discover(a=3)
    play.arrive(0)
    play.exit(1, 0)
    play.exit(2, 3)
    assert play.over is not None
    assert play.over.error == ""
    assert play.over.failed is not None
    assert play.over.failed.exit_code == 3


def test_a_host_that_was_tried_to_the_end_is_no_news_when_the_job_is_over() -> None:
    play = Play(1)
    play.unreachable = {"a"}
    play.discover(a=1)
    play.driver.stop("", play.now)
    play.act()
    assert play.over is not None
    play.driver.host_lost("a", "silent at last", play.now)
    assert play.driver.actions == []


def test_a_program_that_never_wants_a_world_succeeds() -> None:
    play = Play(1, processes=2)
    play.discover(a=2)
    play.exit(1, 0)
    play.exit(0, 0)
    assert play.over is not None
    assert play.over.error == ""
    assert play.over.failed is None


def test_a_worker_that_ends_well_ends_the_job_well() -> None:
    play = Play(2)
    play.begin(a=2)
    play.exit(0, 0)
    assert not play.is_over()  # the other one may be about to end, too
    play.ready(1, failed=True, because=0)
    assert play.over is not None
    assert play.over.error == ""
    assert play.over.failed is None
    assert play.workers[1].dismissed
    (early,) = (log.text for log in play.logs if log.event == "ended_early")
    assert early == (
        "rank 0 on a ended with status 0, which ends the job, while another one still trained: rank 1 on a"
    )


def test_nobody_has_ended_early_if_the_others_end_well_or_wait_for_a_change() -> None:
    play = Play(2)
    play.begin(a=3)
    play.exit(0, 0)
    play.exit(1, 0)
    play.ready(2)
    assert play.over is not None
    assert not [log for log in play.logs if log.event == "ended_early"]


def test_all_fail() -> None:
    play = Play(2)
    play.begin(a=1, b=1)
    play.exit(1, 3)
    play.exit(0, 1)
    assert play.over is not None
    assert play.over.failed is not None
    assert (play.over.failed.rank, play.over.failed.exit_code) == (1, 3)


def test_one_fails_on_each_host() -> None:
    play = Play(1)
    play.begin(a=2, b=2)
    play.exit(0, 1)
    play.exit(2, 1)
    play.ready(1, 3, failed=True)
    assert play.over is not None
    assert play.over.failed is not None


@pytest.mark.parametrize("newcomer", ["is only listed", "loads", "has arrived", "is ready", "was stopped"])
def test_a_host_without_the_state_saves_nobody(newcomer: str) -> None:
    """The host of the failed rank has all that is left of the training: only the slot is left out."""
    play = Play(1)
    play.begin(a=2)
    play.ready(0, 1, synced=True)  # they have trained
    play.unreachable = {"b"} if newcomer == "is only listed" else set()
    play.discover(a=2, b=1)
    if newcomer in ("has arrived", "is ready", "was stopped"):
        play.arrive(2)
    if newcomer in ("is ready", "was stopped"):
        play.ready(2)
    if newcomer == "was stopped":
        play.stop(2)
    play.exit(0, -9)
    play.ready(1, failed=True, synced=True)
    assert play.over is None
    assert play.world == ([1, 2] if newcomer == "is ready" else [1])
    assert [log.text for log in play.logs if log.event == "left_out"] == [
        "slot 0 of a is left out from now on"
    ]


def test_a_host_that_is_left_out_saves_nobody() -> None:
    """Discovery goes on to name it."""
    play = Play(1)
    play.begin(a=2, b=2)
    play.exit(0, -9)
    play.ready(1, 2, 3, failed=True, synced=True)
    assert play.hosts.is_blacklisted("a")
    assert play.world == [2, 3]
    play.exit(2, -9)
    play.ready(3, failed=True, synced=True)
    assert play.over is None
    assert play.world == [3]


def test_a_host_whose_only_rank_with_the_state_is_stopped_saves_nobody() -> None:
    play = Play(1, lost_s=10.0)
    play.begin(a=2, b=1)
    play.stop(2)
    play.exit(0, -9)
    play.ready(1, failed=True, because=0, synced=True)
    play.wait(11.0)
    assert play.killed == [2]
    assert play.world == [1]


def test_a_host_costs_what_was_asked_for() -> None:
    play = Play(1, by_slot=False)
    play.begin(a=2)
    play.exit(0, -9)
    play.ready(1, failed=True)
    assert play.over is not None


def test_the_reset_limit() -> None:
    play = Play(1, reset_limit=1)
    play.begin(a=1, b=1, c=1)
    play.discover(a=1, b=1)
    play.ready(0, 1, 2)
    assert play.world == [0, 1]
    play.discover(a=1)
    play.ready(0, 1)
    assert play.over is not None
    assert too_many_resets(1) in play.over.error


def test_no_reset_at_all() -> None:
    play = Play(1, reset_limit=0)
    play.begin(a=1, b=1)
    play.exit(0, 1)
    play.ready(1, failed=True)
    assert play.over is not None
    assert too_many_resets(0) in play.over.error


def test_nobody_is_left_who_has_the_state() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(b=1)
    play.arrive(1)
    play.ready(1)
    play.ready(0)
    assert play.over is not None
    assert "No hosts from previous set remaining" in play.over.error


def test_a_host_that_is_lost_counts_as_failed() -> None:
    play = Play(1)
    play.begin(a=2, b=1)
    play.lose("a")
    play.ready(2, failed=True, because=0)
    assert play.world == [2]
    assert play.hosts.is_blacklisted("a")


def test_a_failure_before_the_first_world() -> None:
    play = Play(1, processes=2)
    play.discover(a=1, b=1)
    play.exit(1, 1)
    play.arrive(0)
    assert play.world == [0]
    assert play.size() == 1


def test_a_second_failure_while_the_world_is_formed() -> None:
    play = Play(1, processes=3)
    play.begin(a=1, b=1, c=1)
    play.exit(0, 1)
    play.ready(1, 2, failed=True, because=0)
    assert play.driver.round == 2
    play.exit(1, 1)  # before it is connected
    assert play.spoiled[-1].round == 2
    play.ready(2, formed=False, failed=True, because=0)
    assert play.world == [2]
    assert play.driver.round == 3


def test_a_failure_while_waiting() -> None:
    play = Play(1, processes=3)
    play.begin(a=1, b=1, c=1)
    play.exit(0, 1)
    play.ready(1, failed=True, because=0)
    play.exit(1, -9)
    play.ready(2, failed=True, because=0)
    assert play.world == [2]


def test_a_failed_newcomer_disturbs_nobody() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(a=1, b=1)
    play.exit(1, 1)
    assert play.awaits(Phase.TRAINING)
    assert play.hosts.is_blacklisted("b")
    assert play.notified == []


def test_a_failed_newcomer_beside_members_costs_its_slot() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(a=2)
    play.exit(1, 1)
    assert not play.hosts.is_blacklisted("a")
    assert play.hosts.slots("a") == [0]
    play.wait(100.0)
    assert len(play.workers) == 2  # it is not started again and again


def test_a_failed_newcomer_costs_its_slot_where_slots_fail() -> None:
    """Though no member beside it shows that its host is well."""
    play = Play(1, by_slot=True)
    play.begin(a=1)
    play.discover(a=1, b=2)
    play.exit(1, 1)
    assert play.alive() == [0, 2]
    play.arrive(2)
    play.ready(2)
    play.ready(0, synced=True)
    assert play.world == [0, 2]


def test_a_newcomer_whose_host_goes_is_ended() -> None:
    play = Play(1)
    play.begin(a=1)
    play.discover(a=1, b=1)
    play.discover(a=1)
    assert play.killed == [1]
    assert play.notified == []


def test_worlds_that_cannot_be_formed_leave_out_who_is_blamed() -> None:
    play = Play(1, processes=3)
    play.begin(a=1, b=1, c=1)
    for _ in range(2):
        play.ready(0, formed=False, failed=True, because=2)
        play.ready(1, formed=False, failed=True, because=2)
        play.ready(2, formed=False, failed=True, because=0)
    assert play.hosts.is_blacklisted("c")
    assert play.world == [0, 1]
    assert play.driver.round == 3


def test_worlds_that_cannot_be_formed_for_no_known_reason_end_the_job() -> None:
    play = Play(1, processes=2)
    play.begin(a=1, b=1)
    for _ in range(6):
        assert play.over is None
        play.ready(0, 1, formed=False, failed=True)
    assert play.over is not None
    assert "could not be formed" in play.over.error


def test_a_dismissed_worker_that_stays_is_ended() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    play.stubborn = {1}
    play.discover(a=1)
    play.ready(0, 1)
    assert play.alive() == [0, 1]
    play.stubborn = set()
    play.wait(11.0)
    assert play.killed == [1]


def test_old_reports_mean_nothing() -> None:
    play = Play(1)
    play.begin(a=2)
    answers = len(play.workers[0].answers)
    play.driver.said(0, 0, Report(ready=False), play.now)
    play.driver.said(99, 0, Report(ready=False), play.now)
    play.act()
    assert len(play.workers[0].answers) == answers
    assert play.awaits(Phase.TRAINING)


def test_a_worker_that_was_announced_to_go_has_not_failed() -> None:
    play = Play(1, cooldown_s=None)
    play.begin(a=2, b=1)
    play.driver.leaving(0, Leaving("SIGTERM", host=False), play.now)
    play.act()
    play.exit(0, -15)  # its time was over before the next commit
    play.ready(1, 2, failed=True, because=0)
    assert play.world == [1, 2]
    assert not play.hosts.is_blacklisted("a")
    play.wait(301.0)
    assert hosts_of(play, play.newcomers()) == ["a"]


def test_an_error_that_every_world_repeats_ends_the_job() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    for _ in range(11):
        play.ready(0, 1, failed=True)
        assert play.phase is Phase.TRAINING
    play.ready(0, 1, failed=True)
    assert play.over is not None
    assert "12 worlds in a row have failed within 60 s" in play.over.error
    assert play.over.error.endswith("The last reason: why")


def test_errors_from_time_to_time_do_not_end_it() -> None:
    play = Play(1)
    play.begin(a=1, b=1)
    for _ in range(30):
        play.wait(61.0)
        play.ready(0, 1, failed=True)
    assert play.phase is Phase.TRAINING


# -- scripts that have failed, and whose processes take long to end ------------------------------------------


def test_the_process_of_a_failed_script_is_waited_for_a_moment_only() -> None:
    play = Play(1, by_slot=True, exit_s=0.5)
    play.begin(a=3)
    play.fail(1)
    play.ready(0, 2, failed=True, because=1)
    play.wait(0.4)
    assert play.awaits(Phase.RESET)
    play.wait(0.2)
    assert play.world == [0, 2]
    assert play.alive() == [0, 1, 2]
    assert play.newcomers() == [1]  # its slot is not free
    (left,) = [log for log in play.logs if log.event == "left"]
    assert left.text == "rank 1 on a has failed: its script raised ValueError: boom"
    assert [spoiled.rank for spoiled in play.spoiled] == [1]
    play.exit(1, 1)
    assert len([log for log in play.logs if log.event == "left"]) == 1


def test_a_process_that_ends_in_time_is_told_by_its_status() -> None:
    play = Play(1, by_slot=True, exit_s=0.5)
    play.begin(a=2)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.exit(1, 1)
    assert play.world == [0]
    assert [log.text for log in play.logs if log.event == "left"] == ["rank 1 on a exited with status 1"]


def test_others_that_have_not_reported_are_waited_for() -> None:
    play = Play(1, by_slot=True, exit_s=0.5)
    play.begin(a=3)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.wait(60.0)
    assert play.awaits(Phase.RESET)
    play.ready(2, failed=True, because=1)
    assert play.world == [0, 2]


def test_the_slot_of_a_failed_script_is_used_again_when_its_process_has_ended() -> None:
    play = Play(1, by_slot=True, exit_s=0.5, cooldown_s=(1.0, 1.0))
    play.begin(a=2)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.wait(60.0)
    assert play.world == [0]
    assert play.alive() == [0, 1]
    play.exit(1, 1)
    assert play.alive() == [0, 2]


def test_where_nobody_goes_on_processes_are_waited_for() -> None:
    """Handlers at exit may write what is worth keeping."""
    play = Play(1, exit_s=0.5)
    play.begin(a=2)
    play.fail(0)
    play.fail(1)
    play.wait(60.0)
    assert not play.is_over()
    play.exit(0, 3)
    play.wait(60.0)
    assert not play.is_over()
    play.exit(1, 1)
    assert play.over is not None
    assert play.over.failed is not None
    assert play.over.failed.exit_code == 3


@pytest.mark.parametrize("end", ["exits", "is lost with its host"])
def test_the_job_is_over_when_the_process_of_a_failed_script_has_ended(end: str) -> None:
    """No reset is allowed: the process that has failed says with which status the job ends."""
    play = Play(1, exit_s=0.5, reset_limit=0)
    play.begin(a=1, b=1)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.wait(9.0)
    assert not play.is_over()
    if end == "exits":
        play.exit(1, 3)
    else:
        play.lose("b")
    assert play.over is not None
    assert "exceeded limit: 0" in play.over.error


def test_the_status_of_a_process_that_ends_late_is_that_of_the_job() -> None:
    play = Play(1, exit_s=0.5, by_slot=False)
    play.begin(a=2)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.wait(1.0)
    assert not play.is_over()
    play.exit(1, 3)
    assert play.over is not None
    assert play.over.failed is not None
    assert (play.over.failed.rank, play.over.failed.exit_code) == (1, 3)


def test_a_success_lets_failed_scripts_come_to_their_end() -> None:
    play = Play(1, exit_s=0.5)
    play.begin(a=3)
    play.exit(0, 0)
    play.fail(1)
    play.ready(2, failed=True, because=1)
    play.wait(9.0)
    assert not play.is_over()
    play.exit(1, 1)
    assert play.is_over()


def test_another_driver_goes_on_without_the_process_of_a_failed_script() -> None:
    play = Play(1, by_slot=True, exit_s=0.5)
    play.begin(a=2)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.restart()
    play.wait(1.0)
    assert play.world == [0]
    play.restart()
    play.exit(1, 1)
    assert play.awaits(Phase.TRAINING)


@pytest.mark.parametrize("limit", [None, 0])
def test_a_process_of_a_failed_script_that_never_ends_is_ended_with_the_job(limit: int | None) -> None:
    play = Play(1, exit_s=0.5, reset_limit=limit, by_slot=True)
    play.begin(a=2)
    play.fail(1)
    play.ready(0, failed=True, because=1)
    play.wait(1.0)
    if limit is None:
        play.exit(0, 0)
    play.wait(20.0)
    assert play.is_over()
    assert play.alive() == []
