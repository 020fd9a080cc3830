from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.checks import CHECKS, WAYS, Check, Machine, Way, figures, rows_of, sanitizer
from tests.gpu.table import FAILED, MET, MISSED, NOT_FOUND, PASSED, Row

ALONE = Machine("cuda", 1)


def test_every_check_names_ways_that_there_are() -> None:
    names = {way.name for way in WAYS}
    assert len(names) == len(WAYS)
    for check in CHECKS:
        assert set(check.ways) <= names


def test_lines_of_a_rank_become_rows() -> None:
    said = """NCCL INFO something
FIGURE {"what": "right", "figure": "yes", "value": null}
FIGURE {"what": "growth", "figure": "9 MiB", "value": 9, "goal": "<= 8 MiB", "wrong": true}
FIGURE {"what": "time", "figure": "9 us", "value": 9.0, "most": 10, "goal": "<= 10 us"}
FIGURE {"what": "share", "figure": "80 %", "value": 80.0, "least": 85}
FIGURE {"what": "time", "figure": "9 us", "value": 9.0}
FIGURE {"what": "none", "figure": "not here", "value": null, "missing": true}
"""
    rows = figures("name", "2 ranks", said)
    assert [row.result for row in rows] == [PASSED, FAILED, MET, MISSED, "", NOT_FOUND]
    assert rows[1] == Row("name", "2 ranks: growth", "9 MiB", "<= 8 MiB", FAILED, 9)


def test_a_rank_that_says_nothing_has_failed() -> None:
    (row,) = figures("name", "1 rank", "some words")
    assert row.result == FAILED
    assert row.detail == "some words"


def test_ways_run_where_there_are_devices_for_them() -> None:
    ran: list[str] = []

    def note(check: Check, way: Way, machine: Machine) -> list[Row]:
        ran.append(way.name)
        return [Row(check.name, way.name, "")]

    check = Check("x", note, ("nccl-1", "nccl", "staged-2"))
    rows = rows_of(check, ALONE)
    assert ran == ["nccl-1", "staged-2"]
    assert rows[1] == Row(
        "x nccl", "one rank for each device", "needs 2 devices, here is 1", result=NOT_FOUND
    )
    ran.clear()
    rows_of(check, Machine("cuda", 2))
    assert ran == ["nccl-1", "nccl", "staged-2"]
    ran.clear()
    rows_of(check, ALONE, ["staged-2"])
    assert ran == ["staged-2"]


def test_the_sanitizer_is_looked_for_in_the_path_and_with_cuda(tmp_path: Path) -> None:
    command = tmp_path / "cuda" / "bin" / "compute-sanitizer"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert sanitizer({"PATH": str(tmp_path)}) in (None, "/usr/local/cuda/bin/compute-sanitizer")
    assert sanitizer({"PATH": str(command.parent)}) == str(command)
    assert sanitizer({"PATH": "", "CUDA_HOME": str(tmp_path / "cuda")}) == str(command)


def test_without_the_sanitizer_its_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.checks.sanitizer", lambda: None)
    (check,) = (check for check in CHECKS if check.name == "sanitizer")
    assert {row.result for row in rows_of(check, ALONE)} == {NOT_FOUND}
