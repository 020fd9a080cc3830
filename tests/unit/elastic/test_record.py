"""What is kept of an elastic job."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from horovod.errors import LaunchError
from horovod.launch.driver.actions import Log
from horovod.launch.elastic.record import Record, timeline_of_job
from horovod.launch.output.console import Console

LEFT = Log("left", "rank 1 on b was killed", {"rank": 1, "host": "b"})
RESUMED = Log("resumed", "it trains", {"round": 2, "took": {"leave": 0.25, "form": 0.5}})


def _console() -> tuple[Console, io.StringIO]:
    said = io.StringIO()
    return Console(stdout=io.StringIO(), stderr=said), said


def test_events_are_there_as_soon_as_they_have_happened(tmp_path: Path) -> None:
    console, said = _console()
    record = Record(console, tmp_path / "new" / "events")
    record.add(LEFT)
    (line,) = map(json.loads, (tmp_path / "new" / "events").read_text().splitlines())
    assert {name: line[name] for name in ("event", "text", "rank", "host")} == {
        "event": "left", "text": LEFT.text, "rank": 1, "host": "b"
    }  # fmt: skip
    assert LEFT.text in said.getvalue()
    record.add(Log("ending", "ending b[1]"))
    assert "ending b[1]" not in said.getvalue()  # for those who want to know more
    record.close()
    record.close()


def test_the_timeline_has_marks_and_the_phases_of_a_reset(tmp_path: Path) -> None:
    record = Record(_console()[0], None, tmp_path / "t.json")
    record.add(LEFT)
    record.add(RESUMED)
    record.close()
    text = (tmp_path / "t.json").read_text()
    marks = json.loads(text.rstrip().rstrip(",") + "]")
    assert [(mark["name"], mark["ph"]) for mark in marks] == [
        ("left", "i"), ("resumed", "i"), ("leave", "X"), ("form", "X")
    ]  # fmt: skip
    leave, form = marks[2:]
    assert (leave["dur"], form["dur"]) == (250_000, 500_000)
    assert form["ts"] == pytest.approx(leave["ts"] + 250_000, abs=2)
    assert marks[1]["ts"] == pytest.approx(form["ts"] + 500_000, abs=2)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"cannot be kept in .*file/events"):
        Record(_console()[0], tmp_path / "file" / "events")


def test_a_full_disk_ends_the_file_not_the_job() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    console, said = _console()
    record = Record(console, Path("/dev/full"))
    record.add(LEFT)
    record.add(RESUMED)
    assert said.getvalue().count("the file /dev/full ends here: No space left on device") == 1
    assert RESUMED.text in said.getvalue()
    record.close()


@pytest.mark.parametrize(
    ("timeline", "path"),
    [
        ("", None),
        ("DYNAMIC", None),
        ("t.json", Path("t.elastic.json")),
        ("/a/b.c/timeline", Path("/a/b.c/timeline.elastic")),
    ],
)
def test_the_timeline_of_the_job_lies_beside_that_of_rank_0(timeline: str, path: Path | None) -> None:
    assert timeline_of_job(timeline) == path


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LaunchError, match="it is a pipe that nobody reads"):
        Record(_console()[0], tmp_path / "pipe")


def test_a_reader_that_pauses_does_not_stop_the_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        console, said = _console()
        record = Record(console, tmp_path / "pipe")
        record.add(LEFT)
        assert json.loads(os.read(reader, 1 << 16))["event"] == "left"
        for _ in range(10_000):
            record.add(LEFT)
        assert said.getvalue().count("ends here: its reader is too slow") == 1
        record.close()
    finally:
        os.close(reader)
