"""`horovod.spark.run` on executors of their own."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from horovod.errors import ConfigError, LaunchError, StoreTimeout, WorkerFailed
from horovod.wordings import RANKS_FAILED, TASKS_DID_NOT_START

pytest.importorskip("pyspark", reason="PySpark is not installed")

from tests.spark.conftest import Lines, assert_no_ranks

import horovod.spark
from horovod.spark.common.backend import LocalBackend, SparkBackend, default_num_proc

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("context")]


def test_results_come_in_the_order_of_ranks_which_are_on_different_hosts_of_spark() -> None:
    def sums(begin: float) -> tuple[int, int, float, list[float]]:
        import numpy as np

        import horovod.arrays as hvd

        hvd.init()
        total = hvd.allreduce(np.full(3, begin + hvd.rank()), op=hvd.Sum)
        return hvd.rank(), hvd.size(), float(os.environ["MINE"]), [float(each) for each in total]

    found = horovod.spark.run(sums, (1.5,), num_proc=2, env={"MINE": "7"}, verbose=0, start_timeout=120)
    assert found == [(0, 2, 7.0, [4.0] * 3), (1, 2, 7.0, [4.0] * 3)]


def test_what_ranks_print_comes_home_as_far_as_it_is_asked_for() -> None:
    def talk() -> None:
        import sys

        import horovod.arrays as hvd

        hvd.init()
        print(f"out of {hvd.rank()}", flush=True)
        print(f"err of {hvd.rank()}", file=sys.stderr, flush=True)

    out, err = io.StringIO(), io.StringIO()
    horovod.spark.run(talk, num_proc=2, stdout=out, stderr=err, verbose=0)
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:out of 0", "[1]<stdout>:out of 1"]
    assert {"[0]<stderr>:err of 0", "[1]<stderr>:err of 1"} <= set(err.getvalue().splitlines())


def test_environment_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def variables() -> list[str | None]:
        names = ("HOROVOD_FUSION_THRESHOLD", "HOME", "PYTHON_WORKER_FACTORY_SECRET")
        return [os.environ.get(name) for name in names]

    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "123456")
    env: dict[str, str | None] = {"HOME": None}
    found = horovod.spark.run(variables, num_proc=1, env=env, verbose=0)
    assert found == [["123456", None, None]]
    assert env == {"HOME": None}, "the caller's dictionary is its own"
    with pytest.raises(ConfigError, match="env must have texts, not 'A': 3"):
        horovod.spark.run(variables, num_proc=1, env={"A": 3}, verbose=0)  # type: ignore[dict-item]


def test_an_exception_of_a_rank_comes_home_with_its_traceback() -> None:
    def fail() -> None:
        import horovod.arrays as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the column 'age'")
        hvd.barrier()

    began = time.monotonic()
    with pytest.raises(WorkerFailed, match=rf"rank 1 on .* exited with .*{RANKS_FAILED}") as caught:
        horovod.spark.run(fail, num_proc=2, verbose=0)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in fail" in str(caught.value)
    assert time.monotonic() < began + 60
    assert_no_ranks()


def test_arguments_that_are_large_are_a_broadcast_variable() -> None:
    def total(array: Any, offset: int) -> float:
        return float(array.sum()) + offset

    array = np.ones(1_000_000)
    assert horovod.spark.run(total, (array,), {"offset": 2}, num_proc=2, verbose=0) == [1_000_002.0] * 2


def test_cancelling_the_spark_job_ends_all_ranks(context: Any) -> None:
    def wait() -> None:
        import time

        import horovod.arrays as hvd

        hvd.init()
        print("ready", flush=True)
        time.sleep(600)

    out = Lines()

    def cancel() -> None:
        out.wait_for("ready", 2)
        context.cancelAllJobs()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(LaunchError, match=r"Spark has ended the tasks of this job.*cancelled"):
        horovod.spark.run(wait, num_proc=2, stdout=out, verbose=0)
    canceller.join()
    assert_no_ranks()


def test_too_few_slots_are_a_time_out_that_says_how_many_there_are() -> None:
    with pytest.raises(
        StoreTimeout, match=rf"Only 0 of 3 tasks of Spark .*within 3 s\. {TASKS_DID_NOT_START}.*2 slots"
    ) as caught:
        horovod.spark.run(len, ("abc",), num_proc=3, start_timeout=3, verbose=0)
    assert isinstance(caught.value, RuntimeError)


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    holder = {"model": [1, lock]}

    def train() -> object:
        return holder

    with pytest.raises(LaunchError, match="item 1 of item 'model' of variable 'holder' of the function"):
        horovod.spark.run(train, num_proc=1, verbose=0)
    with pytest.raises(LaunchError, match=r"argument 'mutex' cannot be pickled.*_thread\.lock"):
        horovod.spark.run(len, kwargs={"mutex": lock}, num_proc=1, verbose=0)


def test_arguments_that_make_no_sense() -> None:
    with (
        pytest.warns(UserWarning, match="use_mpi and extra_mpi_args have no effect"),
        pytest.raises(ConfigError, match="num_proc must be at least 1"),
    ):
        horovod.spark.run(len, num_proc=0, use_mpi=True, extra_mpi_args="-x A", verbose=0)
    with pytest.raises(ConfigError, match="num_proc must be at least 1"):
        horovod.spark.run(len, num_proc=0, verbose=0)
    with pytest.raises(ConfigError, match="start time-out must be a number"):
        horovod.spark.run(len, num_proc=1, start_timeout=-1, verbose=0)


def test_backends_run_where_they_say() -> None:
    def where(word: str) -> tuple[int, int, str | None, str]:
        import horovod.arrays as hvd

        hvd.init()
        return hvd.rank(), hvd.size(), os.environ.get("A"), word

    assert default_num_proc() == 2
    spark = SparkBackend(num_proc=2, env={"A": "1"}, verbose=0)
    assert spark.num_processes() == 2
    assert spark.run(where, args=("x",), env={"B": "2"}) == [(0, 2, "1", "x"), (1, 2, "1", "x")]
    local = LocalBackend(2)
    assert local.num_processes() == 2
    assert local.run(where, kwargs={"word": "y"}, env={"A": "3"}) == [(0, 2, "3", "y"), (1, 2, "3", "y")]


def test_without_a_context_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    with pytest.raises(LaunchError, match=r"horovod\.spark\.run needs a running SparkContext"):
        horovod.spark.run(len, num_proc=1)
