"""However the script of one rank ends, the others are told why, and ``horovodrun`` names that rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.launch.launching import LIMIT_S, environment, horovodrun

from horovod.bootstrap.place.starter import Word
from horovod.launch.driver.causes import RankOutcome, first_cause

SCRIPT = str(Path(__file__).with_name("script_ends.py"))

pytestmark = pytest.mark.usefixtures("whole_end")


@dataclass(frozen=True)
class Way:
    """``heard``: what rank 0 gets, one of these; ``told``: what horovodrun says of rank 1; its ``status``."""

    how: str
    heard: str | tuple[str, ...]
    told: str
    status: int


GONE = (
    "PeerLostError 1 localhost allreduce.loss (1,) rank 1 on host localhost is gone: its process has ended",
    # It may be gone before rank 0 submits the operation that it is needed for.
    "PeerLostError 1 localhost None () rank 1 on host localhost is gone: its process has ended, while nobody",
)
ENDED = "PeerLostError 1 localhost allreduce.loss (1,) rank 1 on host localhost has ended: its script "
NO_WORLD = "RendezvousError 1 localhost None (1,) Rank 1 on host localhost exited with status "
WAYS = [
    Way(
        "raise",
        ENDED + r"raised ValueError: boom \x1b[31mxx",
        r": its script raised ValueError: boom \x1b[31m",
        1,
    ),
    Way("raise speechless", ENDED + "raised Speechless: <", ": its script raised Speechless: <", 1),
    Way("orderly", ENDED + "raised ValueError", r": its script raised ValueError: boom \x1b[31m", 1),
    Way("forked, raise", ENDED + "raised ValueError", r": its script raised ValueError: boom \x1b[31m", 1),
    Way("forked, exit", ENDED + "called sys.exit(3)", "exited with status 3 after", 3),
    Way("exit", ENDED + "called sys.exit(3)", "exited with status 3 after", 3),
    Way(
        "status",
        "ShutdownError 1 localhost allreduce.loss None Horovod has been shut down by rank 1",
        "exited with status 3 after",
        3,
    ),
    Way(
        "well, caught",
        "ShutdownError 1 localhost allreduce.loss None Horovod has been shut down by rank 1",
        "exited with status 0 after",
        1,
    ),
    Way(
        "well",
        "ShutdownError 1 localhost allreduce.loss None Horovod has been shut down by rank 1 on host localhost"
        ": its script has come to its end",
        "exited with status 0 after",
        1,
    ),
    Way("at once", GONE, "exited with status 5 after", 5),
    Way("signal", GONE, "was killed by SIGKILL (status 137) after", 137),
    Way("thread", GONE, r": its script raised ValueError: boom \x1b[31m", 6),
    Way(
        "in init",
        "RendezvousError 1 localhost None () Rank 1 on host localhost: the connections to 1 other ranks",
        ": its script raised horovod.errors.BackendError: Rank 1 on host localhost: the connections to",
        1,
    ),
    Way("before", NO_WORLD + "4. No world can be formed without it", "exited with status 4 after", 4),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.how)
def test_others_learn_why_and_the_launcher_names_the_first(way: Way, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    words = ("-np", "2", "--failure-patience", "8", sys.executable, SCRIPT, way.how, str(gate))
    done = horovodrun(*words, extra={"HOROVOD_SECRET_KEY": ""})
    said, heard = done.stderr.decode(), done.stdout.decode()
    expected = (way.heard,) if isinstance(way.heard, str) else way.heard
    assert any(f"[0]<stdout>:{each}" in heard for each in expected), heard + said
    summary = [line for line in said.splitlines() if line.startswith("horovodrun: rank 1 on localhost ")]
    assert summary, said
    assert way.told in summary[-1], said
    assert "the other rank was ended because of it" in summary[-1]
    assert done.returncode == way.status
    assert len(heard) < 2000, "texts are bounded"
    assert "\x1b" not in heard + summary[-1]


def test_rank_that_fails_and_does_not_end_is_named_by_what_the_others_say() -> None:
    words = ("-np", "2", sys.executable, SCRIPT, "slowly")
    done = horovodrun(*words, extra={"HOROVOD_SECRET_KEY": ""})
    said = done.stderr.decode()
    summary = [line for line in said.splitlines() if line.startswith("horovodrun: rank ")][-1]
    assert re.match(
        r"horovodrun: rank 1 on localhost failed and had not ended after [\d.]+ s: its script raised "
        r"ValueError: boom .*; the other rank was ended because of it\.",
        summary,
    ), said
    assert done.returncode == 1
    assert "[1]<stderr>:ValueError: boom" in said
    assert "its last lines:" not in said  # a traceback that was shown is not told again


def test_rank_that_fails_before_anybody_waits_ends_the_job_at_once() -> None:
    began = time.monotonic()
    done = horovodrun("-np", "2", "--failure-patience", "15", sys.executable, SCRIPT, "import")
    assert time.monotonic() - began < 12
    assert done.returncode == 1
    assert b"rank 1 on localhost exited with status 1 after" in done.stderr
    assert b"ImportError: no module of that name" in done.stderr


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([RankOutcome(0, 1, "raised", because=1), RankOutcome(1, 1, "raised ValueError")], 1),
        ([RankOutcome(0, 1), RankOutcome(1, 1, "raised ValueError")], 0),
        ([RankOutcome(0, 1, "raised", because=1), RankOutcome(2, 3), RankOutcome(1, 1)], 1),
        ([RankOutcome(0, 1, "raised", because=1), RankOutcome(2, -9)], 2),
        ([RankOutcome(1, 0), RankOutcome(0, 1, "raised", because=1)], 1),
        ([RankOutcome(1, 0), RankOutcome(0, 1, "raised", because=1), RankOutcome(2, 2)], 2),
        ([RankOutcome(0, 1, "raised", because=1), RankOutcome(2, 1, "raised", because=1)], 0),
        ([RankOutcome(0, 0), RankOutcome(1, 0)], None),
    ],
)
def test_first_cause_is_the_strongest_evidence(ends: list[RankOutcome], first: int | None) -> None:
    found = first_cause(ends)
    assert (found and found.rank) == first


LET_DOWN = RankOutcome(0, 1, "raised PeerLostError: rank 1 on host a is gone", because=1)


@pytest.mark.parametrize(
    ("ends", "words", "first"),
    [
        # It has said so itself, but something keeps it from ending.
        ([LET_DOWN], {1: Word(True, "raised ValueError")}, RankOutcome(1, None, "raised ValueError")),
        # It stands still, and others say what they know.
        ([LET_DOWN], {1: Word(True)}, RankOutcome(1, None, LET_DOWN.text, told_by=0)),
        ([LET_DOWN], {1: Word(False)}, RankOutcome(1, None, LET_DOWN.text, told_by=0)),
        # It belongs to somebody else, who knows more.
        ([LET_DOWN], {}, LET_DOWN),
        # It was let down itself; by whom is known as well.
        (
            [LET_DOWN],
            {1: Word(True, "raised", because=2), 2: Word(True, "raised ValueError")},
            RankOutcome(2, None, "raised ValueError"),
        ),
        ([LET_DOWN, RankOutcome(2, 3)], {1: Word(True, "raised", because=2)}, RankOutcome(2, 3)),
        # Two that blame each other: the one that has ended.
        ([LET_DOWN], {1: Word(True, "raised", because=0)}, LET_DOWN),
        # Who was killed is beyond doubt.
        ([LET_DOWN, RankOutcome(2, -9)], {1: Word(True, "raised ValueError")}, RankOutcome(2, -9)),
        ([RankOutcome(0, 0)], {1: Word(True, "raised ValueError")}, None),
    ],
)
def test_first_cause_need_not_have_ended(
    ends: list[RankOutcome], words: dict[int, Word], first: RankOutcome | None
) -> None:
    assert first_cause(ends, words) == first


def test_interrupted_before_there_is_a_job_it_says_nothing() -> None:
    # What is imported takes longest; the signal comes when the interpreter has begun with that.
    program = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'horovod.launch.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['horovodrun', '-np', '1', 'true']\n"
        "import runpy; runpy.run_module('horovod.runner.launch', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-2, b"", b"")
