"""Scripts that are ended from outside, and clusters that go: no process of the job is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horovod.bootstrap.place.proc import every_process, stat_of

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from tests.ray.helpers import await_end, await_free, release
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, ROOT, WHOLE, Session, in_ray, why_not

LIMIT_S = 300.0
whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


@pytest.fixture(scope="module")
def ray_session() -> Iterator[Session]:
    """A cluster of its own: the last test ends it."""
    if reason := why_not():
        pytest.skip(reason)
    made = Session()
    yield made
    made.close()


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)  # files and processes that are not our children tell nobody


class Driver:
    """A script whose two ranks train until they are ended."""

    def __init__(self, kind: str) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ray" / "endless.py"), kind, str(self._folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        until(lambda: len(self.ranks()) == 2 or self.process.poll() is not None, "the ranks do not train")

    def ranks(self) -> list[int]:
        return [int(file.name) for file in self._folder.glob("[0-9]*")]

    def said(self) -> str:
        return self.process.communicate(timeout=LIMIT_S)[0]


@whole
@in_ray
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("kind", ["static", "elastic", "train"])
def test_a_driver_that_is_ended_leaves_no_rank(kind: str, name: str) -> None:
    release()
    driver = Driver(kind)
    ranks = driver.ranks()
    assert len(ranks) == 2, driver.said()
    driver.process.send_signal(getattr(signal, name))
    said = driver.said()
    if (kind, name) != ("train", "SIGINT"):  # there Ray Train says what the exit status is
        assert driver.process.returncode != 0
    if kind == "static" and name == "SIGINT":
        assert "KeyboardInterrupt" in said
    if kind == "elastic" and name != "SIGKILL":
        assert f"{name} ended the job" in said
    await_end(ranks, 60)
    await_free(HEAD_CPUS + OTHER_CPUS, 60)


@whole
@in_ray
def test_a_cluster_that_goes_takes_all_with_it() -> None:
    """The node of the driver dies. Ray itself ends the driver."""
    release()
    driver = Driver("static")
    ranks = driver.ranks()
    assert len(ranks) == 2, driver.said()
    os.environ.pop("RAY_ADDRESS")
    ray.shutdown()  # else it would end this process, too
    for pid in {_parent(rank) for rank in ranks}:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
    driver.said()
    assert driver.process.returncode != 0
    await_end(ranks, 60)


def _parent(pid: int) -> int:
    return next(stat.parent for each, stat in every_process() if each == pid)


def _reap(pid: int) -> None:
    """What runs a node is a child of this process; its workers look whether it is there."""
    until(lambda: (stat := stat_of(pid)) is None or stat.state == "Z", "it does not end")
    os.waitpid(pid, 0)
