"""Trials of Ray Tune on several ranks."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horovod.arrays as hvd
from horovod.errors import ConfigError, LaunchError

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="Ray Tune needs PyArrow")

from ray import tune
from tests.ray.helpers import await_end, await_free, release
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, WHOLE, in_ray

from horovod.ray.tune import DistributedTrainableCreator, report

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


def steps(config: dict[str, Any], state: int | None) -> None:
    """Reports sums, from the step on that was kept; leaves the numbers of its processes in a folder."""
    hvd.init()
    Path(config["folder"], str(os.getpid())).touch()
    step = state or 0
    while step < config.get("steps", 3):
        total = float(hvd.allreduce(np.full(2, config["factor"] * (hvd.rank() + 1.0)), op=hvd.Sum)[0])
        step += 1
        if step == 2 and state is None and hvd.rank() == 1:
            if config.get("fails"):
                raise KeyError("no such column")
            if config.get("dies"):
                os.kill(os.getpid(), 9)
        nodes = len({each.tobytes() for each in hvd.allgather(np.array([[hvd.cross_rank()]]))})
        report({"total": total, "step": step, "begun": state, "nodes": nodes}, step)
        if config.get("slow"):
            time.sleep(0.1)


def tuned(
    space: dict[str, Any], failures: int = 0, stop: Any = None, function: Any = steps, **how: Any
) -> Any:
    tuner = tune.Tuner(
        DistributedTrainableCreator(function, timeout_s=60, **how),
        param_space=space,
        tune_config=tune.TuneConfig(metric="total", mode="max"),
        run_config=tune.RunConfig(
            storage_path=tempfile.mkdtemp(),
            verbose=0,
            stop=stop,
            failure_config=tune.FailureConfig(max_failures=failures),
        ),
    )
    return tuner.fit()


@in_ray
def test_what_trials_cannot_be_made_of() -> None:
    lock = threading.Lock()
    with pytest.raises(LaunchError, match="variable 'lock' of the function cannot be pickled"):
        DistributedTrainableCreator(lambda config: lock)
    with pytest.raises(ConfigError, match="no ssh is used"):
        DistributedTrainableCreator(steps, replicate_pem=True)
    for count in (0, -1):
        with pytest.raises(ValueError, match="num_workers must be a whole number"):
            DistributedTrainableCreator(steps, num_workers=count)
        with pytest.raises(ValueError, match="num_hosts must be a whole number"):
            DistributedTrainableCreator(steps, num_hosts=count)
    for cpus in (-1, "a", 1.5):
        with pytest.raises(ValueError, match="num_cpus_per_worker must be a whole number, or a share of one"):
            DistributedTrainableCreator(steps, num_cpus_per_worker=cpus)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a rank needs a CPU or a GPU"):
        DistributedTrainableCreator(steps, num_cpus_per_worker=0)
    with pytest.raises(ConfigError, match="timeout_s must be a number of seconds"):
        DistributedTrainableCreator(steps, timeout_s=-1)


@whole
@in_ray
def test_a_trial_keeps_objects_of_classes_of_its_script() -> None:
    """As a notebook defines them: no process can import these."""

    class Progress:
        def __init__(self, step: int) -> None:
            self.step = step

    def train(config: dict[str, Any], state: Any) -> None:
        hvd.init()
        step = 0 if state is None else state.step
        report({"step": step + 1, "total": step}, Progress(step + 1))
        if state is None:
            raise KeyError("once")
        assert type(state).__name__ == "Progress"

    release()
    results = tuned({}, failures=1, function=train, num_workers=1)
    assert not results.errors
    assert results[0].metrics["step"] == 2


@whole
@in_ray
def test_what_rays_own_report_would_drop_is_an_error() -> None:
    def train(config: dict[str, Any]) -> None:
        hvd.init()
        tune.report({"total": 1.0})

    release()
    results = tuned({}, function=train, num_workers=1)
    assert len(results.errors) == 1
    assert "Call horovod.ray.tune.report(metrics, state)" in str(results.errors[0])


@whole
@in_ray
def test_trials_of_two_nodes_try_what_there_is_to_try() -> None:
    release()
    folder = tempfile.mkdtemp()
    results = tuned({"factor": tune.grid_search([1.0, 2.0]), "folder": folder}, num_hosts=2)
    best = results.get_best_result()
    assert [results[0].metrics["total"], results[1].metrics["total"]] == [3.0, 6.0]
    assert best.config["factor"] == 2.0
    assert (best.metrics["step"], best.metrics["nodes"]) == (3, 2)
    await_end(map(int, os.listdir(folder)))
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
@pytest.mark.parametrize("what", ["fails", "dies"])
def test_a_trial_goes_on_from_what_was_reported(what: str) -> None:
    release()
    folder = tempfile.mkdtemp()
    results = tuned({"factor": 1.0, "folder": folder, what: True}, failures=1, num_workers=2)
    assert not results.errors
    assert (results[0].metrics["step"], results[0].metrics["begun"]) == (3, 1)
    assert len(os.listdir(folder)) == 4
    await_end(map(int, os.listdir(folder)))
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
def test_a_trial_whose_rank_fails_says_which() -> None:
    release()
    results = tuned({"factor": 1.0, "folder": tempfile.mkdtemp(), "fails": True}, num_workers=2)
    assert len(results.errors) == 1
    assert "rank 1 on node" in str(results.errors[0])
    assert "no such column" in str(results.errors[0])
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
def test_a_trial_that_is_stopped_leaves_no_rank() -> None:
    release()
    folder = tempfile.mkdtemp()
    space = {"factor": 1.0, "folder": folder, "steps": 10**6, "slow": True}
    results = tuned(space, stop={"training_iteration": 3}, num_workers=2)
    assert results[0].metrics["step"] == 3
    assert len(os.listdir(folder)) == 2
    await_end(map(int, os.listdir(folder)))
    await_free(HEAD_CPUS + OTHER_CPUS)
