"""`horovod.spark.run_elastic`: a rank is killed, and Spark's next attempt of its task takes its place."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from horovod.errors import ConfigError, LaunchError

pytest.importorskip("pyspark", reason="PySpark is not installed")

import horovod.spark
from horovod.spark import conf
from horovod.spark.task import get_available_devices

pytestmark = pytest.mark.timeout(240)


@pytest.mark.usefixtures("context")
def test_a_rank_that_was_killed_is_replaced_by_the_next_attempt_of_its_task(tmp_path: Path) -> None:
    def train(batches: int, killed: str) -> tuple[int, int, int, int]:
        import os
        import signal

        import torch

        import horovod.torch as hvd

        hvd.init()
        model = torch.nn.Linear(4, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
        )
        state = hvd.elastic.TorchState(model, optimizer, batch=0)

        @hvd.elastic.run
        def go(state: hvd.elastic.TorchState) -> int:
            while state.batch < batches:
                optimizer.zero_grad()
                model(torch.ones(8, 4)).square().mean().backward()
                optimizer.step()
                if state.batch == 3 and hvd.rank() == 1 and not os.path.exists(killed):
                    with open(killed, "w"):
                        os.kill(os.getpid(), signal.SIGKILL)
                state.batch += 1
                state.commit()
            return int(state.batch)

        return hvd.rank(), hvd.size(), hvd.local_size(), go(state)

    killed = tmp_path / "killed"
    err = io.StringIO()
    found = horovod.spark.run_elastic(
        train, (40, str(killed)), num_proc=2, elastic_timeout=100, stderr=err, verbose=0
    )
    assert [each[1:] for each in found] == [(2, 1, 40)] * 2
    assert killed.exists(), "nobody was killed"


@pytest.mark.usefixtures("context")
def test_tasks_that_spark_gives_up_end_the_job() -> None:
    def fail() -> None:
        raise ValueError("always")

    with pytest.raises(LaunchError, match=r"Spark has ended the tasks of this job|exited with status 1"):
        horovod.spark.run_elastic(fail, num_proc=2, elastic_timeout=60, verbose=0)


@pytest.mark.usefixtures("context")
def test_sizes_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="max_num_proc=1 is less than num_proc=2"):
        horovod.spark.run_elastic(len, num_proc=2, max_num_proc=1, verbose=0)
    with pytest.raises(ConfigError), pytest.warns(DeprecationWarning, match="min_np is deprecated"):
        horovod.spark.run_elastic(len, num_proc=2, min_np=3, verbose=0)


def test_settings_have_the_names_of_the_spark_that_runs() -> None:
    assert conf.family_of("3.0.3") == "spark.blacklist"
    assert conf.family_of("3.1.1") == conf.family_of("4.3.0.dev1") == "spark.excludeOnFailure"
    assert conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK == ("spark.task.maxFailures", "2147483647")
    assert conf.SPARK_CONF_DONT_REUSE_FAILING_NODE == (
        "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode",
        "1",
    )
    assert [value for _, value in conf.SPARK_CONF_DEFAULT_VALUES] == [
        "4",
        "false",
        "2",
        "2",
        "1",
        "2",
        "2",
        "2",
    ]
    assert len(dict(conf.SPARK_CONF_DEFAULT_VALUES)) == 8
    assert set(conf.__all__) <= set(dir(conf))


def test_devices_that_spark_has_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_SPARK_DEVICES", raising=False)
    assert get_available_devices() == []
    monkeypatch.setenv("HOROVOD_SPARK_DEVICES", "2,3")
    assert get_available_devices() == ["2", "3"]
