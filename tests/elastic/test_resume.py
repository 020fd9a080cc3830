"""The driver is killed, and another one goes on: nobody is started anew, every sum is right, and no record is
lost.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from tests.elastic.job import ElasticJob, Point, processes_of
from tests.elastic.training import LONG, Train, check_result, part_of

BY_SLOT = ("--failure-domain", "slot")
THREE = {"localhost": 1, "127.0.0.1": 2}

FIRST = ("import", "init", "forming", "joined", "sync", "step", "commit", "epoch")
AGAIN = ("leaving", "left", "forming", "sync", "reset")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "job.state"


def kept(state: Path) -> tuple[str, ...]:
    return (*BY_SLOT, "--state", str(state))


def test_training_goes_on_without_a_driver_and_ends_with_the_next(train: Train, state: Path) -> None:
    with train(THREE, *kept(state)) as job:
        job.until_point("step", step=3)
        job.kill_driver()
        job.until_point("epoch", 3)
        job.resume(state)
        check_result(job)
        assert len(job.worlds) == 1
        assert not state.exists()


@pytest.mark.parametrize("point", part_of(FIRST, {"forming", "commit"}))
def test_killed_while_a_worker_is_at(train: Train, state: Path, point: str) -> None:
    with train(THREE, *kept(state)) as job:
        job.inject("hold", point, worker=1)
        job.wait(lambda: job.held, point)
        job.kill_driver()
        job.resume(state)
        job.release(1)
        check_result(job)
        assert sorted(job.world.values()) == [0, 1, 2]


@pytest.mark.parametrize("point", part_of(AGAIN, {"left"}))
def test_killed_in_a_reset(train: Train, state: Path, point: str) -> None:
    with train(THREE, *kept(state)) as job:
        job.inject("kill", "submitted", rank=1, step=4)
        job.inject("hold", point, worker=0, when=lambda at: bool(job.strikes))
        job.wait(lambda: job.held, point)
        job.kill_driver()
        job.resume(state)
        job.release(0)
        check_result(job)
        assert list(job.world.values()) == [0, 2]


def test_a_rank_dies_while_there_is_no_driver(train: Train, state: Path) -> None:
    with train(THREE, *kept(state)) as job:
        job.until_point("step", step=3)
        job.kill_driver()
        job.inject("kill", "step", rank=0)
        job.until_point("leaving", 2)
        job.resume(state)
        check_result(job)
        assert list(job.world.values()) == [1, 2]


def test_hosts_change_after_the_driver_has(train: Train, state: Path) -> None:
    with train({"localhost": 2}, *kept(state), epochs=2000) as job:

        def policy(at: Point) -> str:
            return "last" if at.name == "step" and len(job.worlds) == 2 else "go"

        job.policy = policy
        job.until_point("step", step=3)
        job.kill_driver()
        job.offer({"localhost": 2, "127.0.0.1": 1})
        job.resume(state)
        job.until_event("world", 2)
        check_result(job, epochs=None)
        assert list(job.world.values()) == [0, 1, 2]


def test_all_ends_when_no_driver_comes(train: Train, state: Path) -> None:
    with train(THREE, *kept(state), "--driver-wait", "1", epochs=2000) as job:
        job.until_point("step", step=3)
        job.kill_driver()
        began = time.monotonic()
        job.watch(lambda: not processes_of(job.name))
        assert time.monotonic() - began > 0.5
        job.resume(state)
        assert job.finish() != 0
        assert "its agent has ended, and with it all workers there" in job.text


def test_two_drivers_of_one_job(train: Train, state: Path) -> None:
    with train(THREE, *kept(state)) as job:
        job.until_point("step", step=3)
        status, said = job.resume_beside(state)
        assert status == 1
        assert "the driver of this job still runs" in said
        check_result(job)
        assert len(job.worlds) == 1


def test_a_driver_that_is_stopped_for_long_goes_on(train: Train, state: Path) -> None:
    quick = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3"}
    with train(THREE, *kept(state), extra=quick, epochs=2000) as job:
        job.until_point("step", step=3)
        job.process.send_signal(signal.SIGSTOP)
        job.pass_time(5.0)
        job.process.send_signal(signal.SIGCONT)
        job.pass_time(4.0)
        job.policy = lambda at: "last" if at.name == "step" else "go"
        check_result(job, epochs=None)
        assert [each["size"] for each in job.worlds] == [3]
        assert not job.happened("host_lost")


def test_the_same_command_again_is_refused(train: Train, state: Path) -> None:
    state.write_text("a job")
    with train({"localhost": 1}, *kept(state)) as job:
        job.watch(lambda: job.process.poll() is not None)
        job.finish()
        assert job.status == 2
        assert f"go on with that: horovodrun --resume {state}" in job.text


def test_files_of_output_go_on(train: Train, state: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with train({"localhost": 1}, *kept(state), "--output-filename", str(logs)) as job:
        job.until_point("step", step=3)
        (written,) = logs.glob("rank*/stdout")
        written.write_text("from the first driver\n")
        job.kill_driver()
        job.resume(state)
        check_result(job)
        assert written.read_text().startswith("from the first driver\n")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=LONG) for seed in range(1, 50))])
def test_drivers_and_ranks_are_killed_at_random(train: Train, state: Path, seed: int) -> None:
    chance = random.Random(seed)
    with train(THREE, *kept(state), "--blacklist-cooldown-range", "1", "1", epochs=2000) as job:
        drivers = 0

        def policy(at: Point) -> str:
            return "last" if at.name == "step" and drivers >= 5 else "go"

        job.policy = policy
        for _ in range(5):
            job.until_point("step", len(job.been("step")) + chance.randint(1, 60))
            if chance.random() < 0.5:
                kill_one(job, chance)
            job.kill_driver()
            if chance.random() < 0.5:
                kill_one(job, chance)
            if chance.random() < 0.5:
                job.pass_time(chance.uniform(0.0, 0.5))
            job.resume(state)
            drivers += 1
        check_result(job, epochs=None)


def kill_one(job: ElasticJob, chance: random.Random) -> None:
    """If somebody is left who has the state: a newcomer may be a member, and still wait for it."""
    members = {worker for worker in job.living if worker in job.world.values()}
    with_state = members & {point.worker for point in job.been("synced")}
    victims = [worker for worker in sorted(members) if with_state - {worker}]
    if victims:
        victim = chance.choice(victims)
        job.kill(victim)
        job.watch(lambda: victim in job.lost)
