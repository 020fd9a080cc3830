"""A Spark of this machine for all tests of a session: two executors with a core each."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from horovod.bootstrap.place.proc import every_process, stat_of

WHOLE = os.environ.get("FARANDOLE_FULL_MATRIX") == "1"
MASTER = "local-cluster[2,1,1024]"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Java, PySpark and Py4J leave sockets to the collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"))


@pytest.fixture(scope="session")
def context() -> Iterator[Any]:
    """Its SparkContext."""
    pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed (make system)")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = pyspark.SparkConf().setAll(settings(MASTER).items())
    made = pyspark.SparkContext(conf=conf)
    made.setLogLevel("ERROR")
    yield made
    made.stop()


def ranks_below(pid: int) -> list[int]:
    """Processes of ranks, and agents that watch them, below a process."""
    parents = {each: stat.parent for each, stat in every_process()}
    found = []
    for each in parents:
        above = each
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and any(word in words_of(each) for word in ("run_task", "agent/bundle.py")):
            found.append(each)
    return found


def words_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def above(pid: int, what: str) -> int:
    """The process above one whose command line has this word."""
    while what not in words_of(pid):
        stat = stat_of(pid)
        assert stat is not None
        assert stat.parent > 1, f"nothing above is {what}"
        pid = stat.parent
    return pid


def await_end(pids: Iterable[int], limit_s: float = 20.0) -> None:
    """Fail unless these processes end within seconds."""
    until = time.monotonic() + limit_s
    while left := [f"{pid} {words_of(pid)}" for pid in pids if words_of(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)  # of processes that are not our children no event tells


def assert_no_ranks(limit_s: float = 20.0) -> None:
    """Within seconds no rank and no agent runs any more below this process."""
    await_end(ranks_below(os.getpid()), limit_s)


class Lines(io.StringIO):
    """A stream that tells when a text has come so often."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            count = super().write(text)
            self._changed.notify_all()
        return count

    def wait_for(self, text: str, times: int, limit_s: float = 100.0) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self.getvalue().count(text) >= times, limit_s)
        assert came, self.getvalue()


def settings(master: str) -> dict[str, str]:
    """Of a Spark that listens on the loopback interface only."""
    return {
        "spark.master": master,
        "spark.app.name": "farandole-tests",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "4",
        "spark.executor.memory": "512m",
        # These live for seconds: the second compiler of Java would take longer than it saves.
        "spark.driver.extraJavaOptions": _SHORT_LIVED,
        "spark.executor.extraJavaOptions": _SHORT_LIVED,
    }


def submit_arguments(master: str) -> str:
    """``PYSPARK_SUBMIT_ARGS`` of a script that makes its session itself."""
    words = [word for name, value in settings(master).items() for word in ("--conf", f"{name}={value}")]
    return shlex.join([*words, "pyspark-shell"])
