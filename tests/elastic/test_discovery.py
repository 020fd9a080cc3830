"""Discovery that fails, hangs, or says nonsense or nothing, while workers train and fail."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from tests.elastic.test_hosts_change import ended_well, last_when
from tests.elastic.training import LONG, Train, check_result, part_of
from tests.launch.launching import COMMAND, LIMIT_S, environment

HOSTS = {"localhost": 1, "127.0.0.1": 2}
BY_SLOT = ("--failure-domain", "slot")

TROUBLE = {
    "fails": ("echo broken >&2; exit 3", "ended with status 3: broken"),
    "nonsense": ("echo a:b:c", "a:b:c"),
    "two words": ("echo two words", "two words"),
    "a number too many": ("echo localhost:-1", "localhost:-1"),
    "killed": ("kill -9 $$", "137"),
}


@pytest.mark.parametrize("trouble", part_of(TROUBLE, {"fails"}))
def test_trouble_later_leaves_the_hosts_what_they_were(train: Train, trouble: str) -> None:
    script, said = TROUBLE[trouble]
    with train(HOSTS, *BY_SLOT, epochs=2000) as job:
        last_when(job, 2, 2)
        job.until_point("step", step=3)
        job.discovery(script)
        failed = job.until_event("discovery_failed")
        assert said in failed["text"]
        assert "The hosts stay localhost:1,127.0.0.1:2" in failed["text"]
        job.inject("kill", "submitted", rank=1)
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [3, 2]


@pytest.mark.parametrize("trouble", part_of(("fails", "nonsense"), {"nonsense"}))
def test_trouble_at_first_ends_the_job(train: Train, trouble: str) -> None:
    script, said = TROUBLE[trouble]
    with train(HOSTS, *BY_SLOT, answers=script) as job:
        assert job.finish() == 1
        assert said in job.text
        assert not job.worlds


@pytest.mark.parametrize("most", part_of((9, 20, 29), {20}))
def test_too_few_open_files_are_an_error_that_says_so(tmp_path: Path, most: int) -> None:
    script = tmp_path / "hosts"
    script.write_text("#!/bin/sh\necho localhost:1\n")
    script.chmod(0o755)
    limited = ["sh", "-c", f'ulimit -n {most}; exec "$@"', "sh", *COMMAND]
    ended = subprocess.run(
        [*limited, "--min-np", "1", "--host-discovery-script", str(script), "true"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = rf"horovodrun: The driver of an elastic job needs \d+ open files .* limit is {most}\. .*\n"
    assert re.fullmatch(said, ended.stderr), ended.stderr
    assert ended.returncode == 1


def test_a_list_that_flaps_keeps_nobody_busy(train: Train) -> None:
    """A host that comes and goes each second costs no worker, no reset and no wait; it is told once."""
    with train({"localhost": 1}, *BY_SLOT, epochs=2000) as job:
        last_when(job, 2, 2)
        job.until_point("step", step=3)
        mark = job.folder / "mark"
        there = (
            f"echo localhost:1\nif [ -e {mark} ]; then rm {mark}; else touch {mark}; echo 127.0.0.1:1; fi\n"
        )
        job.discovery(there)
        told = job.until_event("passing", host="127.0.0.1")
        assert told["text"] == (
            "host 127.0.0.1 is listed off and on: it counts once it was listed twice in a row"
        )
        for _ in range(2):
            job.watch(mark.exists)
            job.watch(lambda: not mark.exists())
        assert not job.happened("newcomer")
        job.offer({"localhost": 1, "127.0.0.1": 1})
        job.until_event("world", size=2)
        ended_well(job)
        assert len(job.happened("passing")) == 1


def test_hosts_that_are_named_are_those_at_first(train: Train) -> None:
    """The script need not know of any when the job starts."""
    named = ("-H", "localhost:1,127.0.0.1:1")
    with train({}, *BY_SLOT, *named, epochs=2000, processes=2, answers="sleep 1000\n") as job:
        last_when(job, 1, 2)
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [2]


def test_a_script_that_hangs_keeps_nobody_and_is_not_left_behind(train: Train) -> None:
    with train(HOSTS, *BY_SLOT, epochs=2000) as job:
        last_when(job, 2, 2)
        job.until_point("step", step=3)
        here = job.folder / "hangs"
        job.discovery(f"touch {here}\nsleep 1000\n")
        job.watch(here.exists)
        job.inject("kill", "submitted", rank=1)
        ended_well(job)
        assert [each["size"] for each in job.worlds] == [3, 2]


def test_a_script_that_hangs_ends_with_a_horovodrun_that_is_killed(train: Train) -> None:
    with train(HOSTS, *BY_SLOT, epochs=2000) as job:
        job.until_point("step", step=3)
        here = job.folder / "hangs"
        job.discovery(f"touch {here}\nsleep 1000 | cat\n")
        job.watch(here.exists)
        job.kill_driver()
        job.look_for_rest()


def test_no_hosts_for_a_while_are_a_pause(train: Train) -> None:
    with train(HOSTS, *BY_SLOT, epochs=2000) as job:
        last_when(job, 2, 3)
        job.until_point("step", step=3)
        job.discovery("")
        job.until_event("hosts", 2)
        job.until_point("left", 3)
        job.offer(HOSTS)
        ended_well(job)
        assert job.worlds[1]["joined"] == job.worlds[1]["left"] == []


@LONG
def test_too_few_slots_at_first_are_awaited(train: Train) -> None:
    with train({"localhost": 1}, *BY_SLOT, processes=3) as job:
        job.until_event("hosts")
        job.offer(HOSTS)
        check_result(job)
        assert [each["size"] for each in job.worlds] == [3]


def test_too_few_slots_for_too_long_are_an_error(train: Train) -> None:
    with train({"localhost": 1}, *BY_SLOT, "--elastic-timeout", "2", processes=3) as job:
        began = time.monotonic()
        assert job.finish() == 1
        assert 2.0 <= time.monotonic() - began < 15.0
        assert "Timed out waiting for minimum number of slots to become available" in job.text
        assert "3 slots needed, 1 there (localhost:1), for 2 s" in job.text


@LONG
def test_flapping(train: Train) -> None:
    """One host less and more, as fast as discovery is asked."""
    with train(HOSTS, *BY_SLOT, epochs=2000) as job:
        job.until_point("step", step=3)
        for count, slots in enumerate((1, 2, 1, 2, 1), start=2):
            job.offer({"localhost": 1, "127.0.0.1": slots})
            job.until_event("hosts", count)
        last_when(job, 2, 2)
        ended_well(job)
        assert {each["size"] for each in job.worlds[1:]} <= {2, 3}
