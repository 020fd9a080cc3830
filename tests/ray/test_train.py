"""Trainers of Ray Train: Ray's own of the former interface, and ours of the present one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horovod.arrays as hvd
from horovod.errors import ConfigError, LaunchError

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="Ray Train needs PyArrow")

import ray.train
from tests.ray.helpers import await_end, await_free, release
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, ROOT, WHOLE, in_ray

from horovod.ray.train import HorovodConfig, HorovodTrainer

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


def trainer(function: Any, workers: int = 2, failures: int = 0, **config: Any) -> HorovodTrainer:
    run = ray.train.RunConfig(
        storage_path=tempfile.mkdtemp(), failure_config=ray.train.FailureConfig(max_failures=failures)
    )
    return HorovodTrainer(
        function,
        train_loop_config=config,
        horovod_config=HorovodConfig(timeout_s=60, env_vars={"OWN": 7}),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=run,
    )


def steps(config: dict[str, Any]) -> None:
    """Three steps, from where the last checkpoint was; one rank does in the second what it was told."""
    hvd.init()
    first = 0
    kept = ray.train.get_checkpoint()
    if kept is not None:
        with kept.as_directory() as folder:
            first = int(Path(folder, "step").read_text())
    for step in range(first, 3):
        total = float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum)[0])
        if step == 1 and first == 0 and hvd.rank() == 1:
            if config.get("kept"):
                ray.train.get_all_reported_checkpoints()  # returns when Ray has what was reported
            if config.get("fails"):
                raise KeyError("no such column")
            if config.get("dies"):
                os.kill(os.getpid(), signal.SIGKILL)
            if config.get("leaves"):
                return
        places = hvd.allgather(np.array([[hvd.rank(), hvd.local_rank(), hvd.local_size()]])).tolist()
        metrics = {"step": step, "first": first, "total": total, "places": places, "pid": os.getpid()}
        metrics |= {"own": os.environ["OWN"], "key": len(os.environ["HOROVOD_SECRET_KEY"])}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step + 1))
            done = ray.train.Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
            ray.train.report(metrics, checkpoint=done)


@whole
@in_ray
def test_workers_of_the_present_ray_train_are_ranks() -> None:
    release()
    result = trainer(steps).fit()
    assert result.metrics is not None
    assert result.metrics["total"] == 3.0
    assert result.metrics["step"] == 2
    assert result.metrics["places"] == [[0, 0, 2], [1, 1, 2]]
    assert (result.metrics["own"], result.metrics["key"]) == ("7", 64)
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "step").read_text() == "3"
    await_end([result.metrics["pid"]])


@whole
@in_ray
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("fails", "no such column"),
        ("dies", "actor_id"),
        ("leaves", "shut down by rank 1"),
    ],
)
def test_the_trainer_says_which_worker_has_failed(what: str, said: str) -> None:
    release()
    with pytest.raises(ray.train.TrainingFailedError, match=said) as raised:
        trainer(steps, **{what: True}).fit()
    failed = raised.value.worker_failures
    assert (0 if what == "leaves" else 1) in failed, failed
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
@pytest.mark.parametrize("what", ["fails", "dies"])
def test_a_run_begins_again_from_its_last_checkpoint(what: str) -> None:
    release()
    result = trainer(steps, failures=1, kept=True, **{what: True}).fit()
    assert (result.metrics["step"], result.metrics["first"]) == (2, 1)
    await_free(HEAD_CPUS + OTHER_CPUS)


def stall(config: dict[str, Any]) -> None:
    """One rank stops: its whole process, or only its training."""
    hvd.init()
    Path(config["folder"], str(os.getpid())).touch()
    hvd.barrier()
    if hvd.rank() == 1 and config["process"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    if hvd.rank() == 1:
        threading.Event().wait(300)
    hvd.allreduce(np.ones(2))


@whole
@in_ray
@pytest.mark.parametrize(
    ("process", "said"),
    [(True, "rank 1 on host .* is lost: no sign of life for 5"), (False, "waiting for rank 1")],
)
def test_a_worker_that_stalls_is_named_and_ended(process: bool, said: str) -> None:
    release()
    folder = tempfile.mkdtemp()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "2")
        patched.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "10")
        with pytest.raises(ray.train.TrainingFailedError, match=said):
            trainer(stall, folder=folder, process=process).fit()
    pids = [int(name) for name in os.listdir(folder)]
    assert len(pids) == 2
    await_end(pids)
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
def test_a_start_that_fails_leaves_nothing_although_the_script_lives() -> None:
    """Ray itself keeps the workers of a group whose start has failed."""
    release()
    made = trainer(steps)
    made.backend_config.timeout_s = 0.001
    with pytest.raises(ray.train.TrainingFailedError, match=r"workers of Ray Train answer .*missing: rank 0"):
        made.fit()
    await_free(HEAD_CPUS + OTHER_CPUS)


@in_ray
def test_variables_without_a_value_are_refused_before_a_worker_is_started() -> None:
    with pytest.raises(ConfigError, match="have a name and a value, not 'A'=None"):
        HorovodConfig(env_vars={"A": None})


@in_ray
def test_what_a_trainer_cannot_pickle_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(LaunchError, match="variable 'lock' of the function cannot be pickled"):
        trainer(lambda: lock)
    with pytest.raises(LaunchError, match="'column' of argument 0 cannot be pickled"):
        trainer(steps, column=lock)


@pytest.mark.parametrize(
    "module",
    ["ray.train.horovod", pytest.param("horovod.ray.train", marks=whole)],
)
@in_ray
def test_trainers_of_the_former_ray_train(module: str) -> None:
    """Ray's own trainer, as Ray ships it, with what it imports from here."""
    release()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "ray" / "former_train.py"), module, folder],
            env={**os.environ, "RAY_TRAIN_V2_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        found = json.loads(Path(folder, "result").read_text())
    assert found["size"] == 2
    assert found["accuracy"] > 0.8, found
    assert found["key"] == 64
    await_end([found["pid"]])
