"""Whatever is killed, the error says who it was, and no process is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from horovod.bootstrap.place.proc import stat_of
from horovod.errors import WorkerFailed

pytest.importorskip("pyspark", reason="PySpark is not installed")

from tests.spark.conftest import WHOLE, Lines, above, assert_no_ranks, await_end, ranks_below, words_of
from tests.spark.driver import wait

import horovod.spark

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).resolve().parents[2]


def agents_parent(rank: int) -> int:
    """The Python worker of Spark that a rank is of."""
    stat = stat_of(above(rank, "agent/bundle.py"))
    assert stat is not None
    guard = stat.parent
    if "agent/bundle.py" in words_of(guard):  # the agent, below its guard
        stat = stat_of(guard)
        assert stat is not None
        return stat.parent
    return guard


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("victim", ["the Python worker", "the executor"])
def test_what_is_killed_below_a_rank_is_named(victim: str) -> None:
    out = Lines()

    def kill() -> None:
        out.wait_for("process", 2)
        found = re.search(r"rank 1 process (\d+)", out.getvalue())
        assert found is not None
        worker = agents_parent(int(found[1]))
        os.kill(worker if victim == "the Python worker" else above(worker, "--executor-id"), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerFailed, match=r"Spark task \d \(executor \d+\) is gone") as caught:
        horovod.spark.run(wait, num_proc=2, stdout=out, verbose=0)
    killer.join()
    assert caught.value.rank == 1
    assert "It ran rank 1; the other rank was ended because of it" in str(caught.value)
    said = "Python worker exited unexpectedly" if victim == "the Python worker" else "ExecutorLostFailure"
    assert said in str(caught.value)
    assert_no_ranks()


@pytest.mark.usefixtures("context")
def test_two_runs_at_once_are_two_worlds() -> None:
    def size(word: str) -> tuple[str, int]:
        import horovod.arrays as hvd

        hvd.init()
        return word, hvd.size()

    found: dict[str, Any] = {}

    def run(word: str) -> None:
        found[word] = horovod.spark.run(size, (word,), num_proc=1, verbose=0)

    threads = [threading.Thread(target=run, args=(word,)) for word in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": [("a", 1)], "b": [("b", 1)]}


@contextmanager
def driver(what: str, master: str = "local[2]") -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A driver of its own, and the processes of its two ranks."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed (make system)")
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", master, what],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    try:
        ranks = []
        for line in started.stdout:
            found = re.search(r"rank \d process (\d+)", line)
            ranks += [int(found[1])] if found else []
            if len(ranks) == 2:
                break
        assert len(ranks) == 2, "the driver has ended before its ranks were there"
        yield started, ranks
    finally:
        below = ranks_below(started.pid)
        started.kill()
        started.wait()
        started.stdout.close()
        await_end(below)


def test_a_driver_that_is_killed_leaves_no_rank() -> None:
    with driver("wait") as (started, ranks):
        everything = [*ranks, *ranks_below(started.pid)]
        started.kill()
        await_end(everything)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_to_the_driver_ends_the_job_and_the_call(signum: signal.Signals) -> None:
    if signum == signal.SIGTERM and not WHOLE:
        pytest.skip("SIGTERM takes the same way: the full matrix tries it")
    with driver("wait") as (started, ranks):
        started.send_signal(signum)
        assert started.stdout is not None
        said = started.stdout.read()
        assert f"driver: JobInterrupted: {signum.name} ended the job" in said
        assert "driver: over" in said
        await_end(ranks)
        assert started.wait(60) == 0


def test_a_context_that_is_stopped_ends_the_job_with_an_error() -> None:
    with driver("stop") as (started, ranks):
        assert started.stdout is not None
        said = started.stdout.read()
        assert re.search(r"driver: (LaunchError|WorkerFailed): .*Spark", said), said
        assert "driver: over" in said
        await_end(ranks)
