"""Elastic jobs on simulated hosts. Every wait here has a limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hosts.jobs import LIMIT_S, PYTHON, RunningJob, running
from tests.hosts.simulated import SimulatedHosts

RANK = str(Path(__file__).with_name("elastic_rank.py"))


class ElasticJob:
    """A ``horovodrun`` that keeps its events in ``folder``; its ranks end when a file is there."""

    def __init__(self, job: RunningJob, folder: Path) -> None:
        self.job = job
        self.folder = folder
        self._seen = 0

    def until(self, wanted: Callable[[dict[str, Any]], bool], limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The next event that is wanted."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            path = self.folder / "events"
            text = path.read_text() if path.exists() else ""
            lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
            for number, line in enumerate(lines[self._seen :], start=self._seen + 1):
                event: dict[str, Any] = json.loads(line)
                if wanted(event):
                    self._seen = number
                    return event
            assert self.job.process.poll() is None, self.job.finish()
            time.sleep(0.02)  # a file tells nobody that it has grown
        raise AssertionError(f"not within {limit_s} s: {[json.loads(line)['text'] for line in lines]}")

    def world(self, size: int, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The next one of so many ranks."""
        return self.until(lambda event: event["event"] == "world" and event["size"] == size, limit_s)

    def finish(self) -> str:
        """Let it end well; what it has printed."""
        (self.folder / "enough").touch()
        status, said = self.job.finish()
        assert status == 0, said
        return said


@contextmanager
def elastic(
    hosts: SimulatedHosts, folder: Path, *options: str, program: Sequence[str] = (RANK,), **extra: Any
) -> Iterator[ElasticJob]:
    """Start it on the first host; ``program``: words after ``python``, to which the file is added."""
    words = ("--elastic-events", str(folder / "events"), *options, PYTHON, *program, str(folder / "enough"))
    with running(hosts, *words, **extra) as job:
        yield ElasticJob(job, folder)


def name(hosts: SimulatedHosts, folder: Path, *numbers: int, slots: int = 1) -> None:
    """These are the hosts that discovery finds, with so many slots each."""
    path = folder / "hosts"
    path.with_suffix(".new").write_text("".join(f"{hosts.names[number]}:{slots}\n" for number in numbers))
    path.with_suffix(".new").replace(path)


def discovery(folder: Path, processes: int = 2) -> tuple[str, ...]:
    """The options of a job that begins with so many ranks, and goes on with any number."""
    return ("-np", str(processes), "--min-np", "1", "--host-discovery-script", f"cat {folder}/hosts")
