"""A worker fails at an exact point: others go on, every sum is right, no record is lost or seen twice."""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest
from tests.elastic.job import ElasticJob
from tests.elastic.training import LONG, Train, check_result, part_of
from tests.launch.freezers import FREEZERS, Freezer

BY_SLOT = ("--failure-domain", "slot")
THREE = {"localhost": 1, "127.0.0.1": 2}

PROGRAMS = {
    "sh": ("sh", "-c", '"$@"; exit $?', "sh"),
    "timeout": ("timeout", "1000"),
    "unshare": ("unshare", "--pid", "--fork", "sh", "-c", '"$@"; exit $?', "sh"),
}

IN_FIRST_WORLD = ("import", "init", "forming", "joined", "prologue", "sync", "synced")
IN_TRAINING = ("step", "submitted", "commit", "saved", "epoch")
IN_RESET = ("leaving", "left", "forming", "joined", "reset", "sync", "synced")


def after(job: ElasticJob, world: int) -> list[int]:
    """Sizes of worlds from this one on."""
    return [each["size"] for each in job.worlds if each["round"] >= world]


@pytest.mark.parametrize("point", part_of(IN_FIRST_WORLD, {"import", "forming", "sync"}))
def test_killed_before_the_first_step(train: Train, point: str) -> None:
    with train(THREE, *BY_SLOT) as job:
        job.inject("kill", point, worker=1)
        check_result(job)
        assert after(job, 1)[-1] == 2
        assert 1 not in job.world.values()


@pytest.mark.parametrize(
    ("point", "rank"), part_of(itertools.product(IN_TRAINING, (0, 1)), {("submitted", 0), ("commit", 1)})
)
def test_killed_in_training(train: Train, point: str, rank: int) -> None:
    with train(THREE, *BY_SLOT) as job:
        job.inject("kill", point, rank=rank, when=lambda at: (at["step"] or 0) >= 5)
        check_result(job)
        assert after(job, 1) == [3, 2]
        survivors = [each for each in range(3) if each != rank]
        assert [job.world[each] for each in range(2)] == survivors


@pytest.mark.parametrize(
    ("point", "rank"), part_of(itertools.product(IN_RESET, (0, 2)), {("forming", 0), ("sync", 2)})
)
def test_second_failure_during_the_reset(train: Train, point: str, rank: int) -> None:
    """Rank 1 is killed; one of the survivors is killed on its way to the next world."""
    with train(THREE, *BY_SLOT) as job:
        job.inject("kill", "submitted", rank=1, step=4)
        second = job.inject("kill", point, worker=rank, when=lambda at: bool(job.strikes))
        check_result(job)
        assert second.times == 0, f"nobody was at {point} after the first failure"
        assert list(job.world.values()) == [2 - rank]


@LONG
def test_raised(train: Train) -> None:
    with train(THREE, *BY_SLOT) as job:
        job.inject("raise", "step", rank=1, step=5)
        check_result(job)
        assert after(job, 1) == [3, 2]
        assert "injected at step" in job.text


def test_raised_with_an_exit_handler_that_takes_long(train: Train) -> None:
    """The others train on; they do not wait for the process."""
    with train(THREE, *BY_SLOT) as job:
        job.inject("raise and stay", "step", rank=1, step=5)
        job.inject("hold", "exit")
        job.until_point("step", size=2)
        assert job.held == [1]
        job.release(1)
        check_result(job)
        assert after(job, 1) == [3, 2]
        assert "rank 1 on 127.0.0.1 has failed: its script raised" in job.text


def test_all_but_one_are_killed(train: Train) -> None:
    with train({"localhost": 2, "127.0.0.1": 2}, *BY_SLOT) as job:
        for rank in (0, 1, 3):
            job.inject("kill", "submitted", rank=rank, step=3)
        check_result(job)
        assert list(job.world.values()) == [2]


@pytest.mark.parametrize("host", part_of(THREE, {"localhost"}))
def test_all_of_a_host_are_killed(train: Train, host: str) -> None:
    with train({"localhost": 2, "127.0.0.1": 2}) as job:
        job.until_point("step", step=3)
        killed = job.kill_host(host)
        check_result(job)
        assert sorted([*killed, *job.world.values()]) == [0, 1, 2, 3]


def test_stopped_for_good(train: Train) -> None:
    """A worker that others have lost, and that is silent, is ended by the driver."""
    limits = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3"}
    with train(THREE, *BY_SLOT, extra=limits) as job:
        job.inject("stop", "step", rank=1, step=5)
        check_result(job)
        assert job.happened("killed", rank=1)
        assert after(job, 1) == [3, 2]


def test_stopped_on_the_way_to_the_next_world(train: Train) -> None:
    """Another one has failed, so nobody names the one that is stopped; and it has no engine any more."""
    with train(THREE, *BY_SLOT) as job:
        job.inject("kill", "submitted", rank=2, step=5)
        job.inject("stop", "left", worker=1)
        check_result(job)
        (killed,) = job.happened("killed", rank=1)
        assert "its process is stopped by a signal or frozen" in killed["text"]
        assert after(job, 1) == [3, 1]


@pytest.mark.parametrize("program", part_of(PROGRAMS, {"sh"}))
def test_stopped_below_another_program(train: Train, program: str) -> None:
    """Its own process is stopped; the one that was started, a shell for instance, is not."""
    if program == "unshare" and os.geteuid() != 0:
        pytest.skip("only root makes namespaces everywhere")
    with train(THREE, *BY_SLOT, below=PROGRAMS[program]) as job:
        job.inject("kill", "submitted", rank=2, step=5)
        job.inject("stop", "left", worker=1)
        check_result(job)
        (killed,) = job.happened("killed", rank=1)
        assert "its process is stopped by a signal or frozen" in killed["text"]
        assert after(job, 1) == [3, 1]


@LONG
@pytest.mark.parametrize("freezer", FREEZERS, ids=str)
def test_frozen_on_the_way_to_the_next_world(train: Train, freezer: Freezer) -> None:
    with freezer.group() as group, train(THREE, *BY_SLOT) as job:
        job.inject("kill", "submitted", rank=2, step=5)
        job.inject("hold", "left", worker=1)
        job.wait(lambda: job.held, "the hold")
        pid = job.pid_of(1)
        group.add(pid)
        group.freeze()
        job.until_event("killed", rank=1)
        if "freezer" in str(freezer):  # version 1: nobody can end it
            job.wait(lambda: job.status == 1, "the end")
            assert f"Even SIGKILL did not end these processes: {pid}.\n" in job.text
        else:
            check_result(job)
        assert after(job, 1) == [3, 1]


def test_a_stopped_spare_is_passed_over(train: Train) -> None:
    """And it is taken when it goes on."""
    sizes = ("--max-np", "2", "--spares", "1")
    with train({"localhost": 3}, *BY_SLOT, *sizes, processes=2, epochs=2000) as job:
        job.policy = lambda at: "last" if at.name == "step" and len(job.worlds) > 2 else "go"
        job.until_point("prologue", worker=2)
        steps = len(job.been("commit", rank=0))
        job.until_point("commit", steps + 20, rank=0)  # it is at its place long since
        job.signal(2, signal.SIGSTOP)
        job.inject("kill", "step", rank=1)
        job.wait(lambda: len(job.worlds) > 1, "the second world")
        job.signal(2, signal.SIGCONT)
        check_result(job, epochs=None)
        assert after(job, 1) == [2, 1, 2]
        assert job.worlds[-1]["joined"] == [2]
        assert not job.happened("killed")


@LONG
def test_stopped_for_a_while(train: Train) -> None:
    with train(THREE, *BY_SLOT) as job:
        job.inject("stop", "step", rank=1, step=5)
        job.wait(lambda: job.strikes, "the stop")
        quiet_until = time.monotonic() + 0.5
        with pytest.raises(AssertionError, match="not within"):
            job.wait(lambda: False, "nothing", quiet_until - time.monotonic())
        job.signal(1, signal.SIGCONT)
        check_result(job)
        assert after(job, 1) == [3]


def test_held_up(train: Train) -> None:
    """A worker that is slow is none that has failed."""
    with train(THREE, *BY_SLOT) as job:
        job.inject("hold", "submitted", rank=1, step=5)
        job.wait(lambda: job.held, "the hold")
        with pytest.raises(AssertionError, match="not within"):
            job.wait(lambda: job.happened("left"), "somebody's end", 1.0)
        job.release(1)
        check_result(job)
        assert after(job, 1) == [3]


def test_ending_well_ends_the_job_well(train: Train) -> None:
    with train(THREE, *BY_SLOT) as job:
        job.inject("end", "step", rank=1, step=5)
        assert job.finish() == 0, job.story()
        assert "rank 1 on 127.0.0.1 ended with status 0, which ends the job, while others still" in job.text
        assert not job.been("wrong")


def test_ending_well_before_init_fails_the_job(train: Train) -> None:
    with train(THREE, *BY_SLOT) as job:
        job.inject("end", "init", worker=1)
        assert job.finish() == 1, job.story()
        assert "ended with status 0 and never called hvd.init(), while ranks 0, 2" in job.text


@pytest.mark.parametrize("point", part_of(("import", "init", "prologue"), {"prologue"}))
def test_a_newcomer_is_killed(train: Train, point: str) -> None:
    """Training goes on without a pause, and the next newcomer comes in when the cool-down is over."""
    cooldown = ("--blacklist-cooldown-range", "1", "1")
    with train(THREE, *BY_SLOT, *cooldown, epochs=200) as job:
        job.inject("kill", "step", rank=1, step=4)
        job.inject("kill", point, worker=3)
        job.policy = lambda at: "last" if at.name == "step" and len(job.worlds) > 2 else "go"
        status = job.finish()
        assert not job.been("wrong"), job.story()
        assert status == 0, job.story()
        assert after(job, 1) == [3, 2, 3]
        assert job.worlds[-1]["joined"] == [4]
