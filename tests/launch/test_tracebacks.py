"""Tracebacks that several ranks print, and those of Ctrl-C."""

from __future__ import annotations

import io
import signal
import time
from pathlib import Path
from typing import cast

import pytest
from tests.launch.launching import PYTHON, horovodrun, running

from horovod.errors import LaunchError
from horovod.launch.contracts.errors import JobInterrupted
from horovod.launch.contracts.events import Event, Failed
from horovod.launch.contracts.fleet import Processes
from horovod.launch.contracts.signals import Signals
from horovod.launch.course.course import Course
from horovod.launch.driver.fixed import FixedDriver
from horovod.launch.output.console import Console
from horovod.launch.output.tracebacks import Tracebacks

BLOCK = ["Traceback (most recent call last):", '  File "x", line 1, in <module>', "ValueError: bad"]
OTHER = [*BLOCK[:2], "ValueError: worse"]


class Shown:
    """Lines of writers that are shown, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lines: list[str] = []
        self.tracebacks = Tracebacks(self.told.append)

    def prints(self, rank: int, *texts: str) -> None:
        data = "".join(f"[{rank}]<stderr>:{text}\n" for text in texts).encode()
        self.lines += self.tracebacks.feed(rank, rank, data).decode().splitlines()
        self._settle()

    def ends(self, rank: int) -> None:
        self.lines += self.tracebacks.close(rank).decode().splitlines()
        self._settle()

    def _settle(self) -> None:
        for _, data in self.tracebacks.settle():
            self.lines += data.decode().splitlines()

    def of(self, rank: int) -> list[str]:
        return [
            text for line in self.lines for _, mark, text in [line.partition(f"[{rank}]<stderr>:")] if mark
        ]


def test_same_traceback_is_shown_once_whatever_the_order() -> None:
    shown = Shown()
    for line in BLOCK:  # all print at the same time
        for rank in range(3):
            shown.prints(rank, line)
    shown.prints(3, "before", *BLOCK, "after")
    shown.tracebacks.name_ranks()
    assert shown.of(0) == BLOCK
    assert shown.of(1) == shown.of(2) == []
    assert shown.of(3) == ["before", "after"]
    assert shown.told == ["3 ranks (1, 2, 3) printed the same traceback as rank 0"]
    assert shown.tracebacks.shows(["what", *BLOCK])
    assert not shown.tracebacks.shows(["what"])


def test_slower_first_rank_holds_nothing_back_for_good() -> None:
    shown = Shown()
    shown.prints(0, *BLOCK[:2])
    shown.prints(1, *BLOCK)
    assert shown.of(1) == []
    shown.prints(0, "ValueError: of my own")
    assert shown.of(1) == BLOCK


def test_rank_that_ends_while_it_prints() -> None:
    shown = Shown()
    shown.prints(0, *BLOCK)
    shown.prints(1, *BLOCK[:2])
    shown.ends(1)
    shown.prints(2, BLOCK[0], "  something else")
    shown.ends(2)
    assert shown.of(1) == []
    assert shown.of(2) == [BLOCK[0], "  something else"]


def test_other_tracebacks_and_those_of_one_rank_are_shown() -> None:
    shown = Shown()
    shown.prints(0, *BLOCK, *BLOCK)
    shown.prints(1, *OTHER, "more")
    assert shown.of(0) == [*BLOCK, *BLOCK]
    assert shown.of(1) == [*OTHER, "more"]
    shown.tracebacks.name_ranks()
    assert shown.told == []


def test_chain_of_tracebacks_is_left_out_as_a_whole() -> None:
    link = ["", "During handling of the above exception, another exception occurred:", ""]
    shown = Shown()
    shown.prints(0, *BLOCK, *link, *OTHER)
    shown.prints(1, *BLOCK, *link, *OTHER)
    shown.prints(2, *BLOCK, *link, "something else")
    assert shown.of(1) == []
    assert shown.of(2) == [*link, "something else"]


def test_tracebacks_of_several_processes_of_a_rank_are_taken_together() -> None:
    head, frame, cause = BLOCK
    shown = Shown()
    shown.prints(0, head, head, frame, cause, frame, cause)
    shown.prints(1, head, head, frame, cause, frame, "ValueError: of my own")
    assert shown.of(1) == [head, head, frame, cause, frame, "ValueError: of my own"]
    shown.tracebacks.leave_out_interrupts()
    stop = "KeyboardInterrupt"
    shown.prints(2, "Process ForkProcess-1:", head, "Process ForkProcess-2:", head, frame, frame, stop, stop)
    shown.prints(3, "Process ForkProcess-1:", head, head, frame, stop, cause)
    shown.prints(4, "Process ForkProcess-1:", "is written")
    assert shown.of(2) == []
    assert shown.of(3) == ["Process ForkProcess-1:", head, head, frame, stop, cause]
    assert shown.of(4) == ["Process ForkProcess-1:", "is written"]


def test_end_of_a_long_traceback_is_recognised() -> None:
    shown = Shown()
    shown.prints(0, BLOCK[0], *(f"  frame {number}" for number in range(30)), BLOCK[2])
    assert shown.tracebacks.shows([*(f"  frame {number}" for number in range(11, 30)), BLOCK[2]])
    assert not shown.tracebacks.shows([*(f"  frame {number}" for number in range(11, 29)), BLOCK[2]])


# All have come before the first one fails, and SIGTERM does not cut what they print.
ALL_FAIL = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
(folder / os.environ["HOROVOD_RANK"]).touch()
while len(list(folder.iterdir())) < 3:
    time.sleep(0.01)
raise ValueError("bad")
"""


def test_job_shows_the_traceback_of_all_ranks_once(tmp_path: Path) -> None:
    done = horovodrun("-np", "3", PYTHON, "-c", ALL_FAIL, str(tmp_path))
    said = done.stderr.decode()
    assert done.returncode == 1
    assert said.count("Traceback (most recent call last):") == 1
    assert "printed the same traceback as rank" in said
    assert "its last lines" not in said


def test_ctrl_c_says_two_lines() -> None:
    rank = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"
    with running("-np", "2", PYTHON, "-c", rank) as job:
        job.lines(2)
        job.signal(signal.SIGINT)
        status, _, stderr = job.finish()
    first, last = stderr.decode().splitlines()
    assert status == 128 + signal.SIGINT
    assert first == "horovodrun: SIGINT received: ending 2 ranks; a second one kills them"
    assert last.startswith("horovodrun: SIGINT ended the job after ")


def test_watcher_that_a_signal_has_ended_with_the_job_was_not_out_of_memory() -> None:
    class Gone:
        def fileno(self) -> int:
            return signals.fileno()

        def events(self) -> list[Event]:
            return [Failed(LaunchError("look for 'out of memory'"), unwatched=True)]

        def pass_on(self, signum: int) -> None: ...

    with Signals() as signals:
        driver = FixedDriver({0: "a"}, 1, 0.0, time.monotonic())
        course = Course(driver, cast("Processes", Gone()), signals, Console(stderr=io.StringIO()))
        with pytest.raises(LaunchError, match="out of memory"):
            course._events()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(JobInterrupted, match=r"^SIGTERM ended the job after"):
            course._events()
