"""`make test-gpu` on the stand-ins, with few operations; and where there is no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import fakes
from tests.contract.world import ROOT, without_job

LIMIT_S = 400.0


def table(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        cwd=ROOT,
        env=without_job(os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.mark.timeout(LIMIT_S + 20)
def test_every_program_runs_on_the_stand_in(tmp_path: Path) -> None:
    programs = ["load", "growth", "copies", "overlap", "beside NCCL", "beside memcpy"]
    ways = ["nccl-1", "staged-1", "staged-2", "peer-2"]
    if "FARANDOLE_FULL_MATRIX" in os.environ:
        programs += ["sanitizer", "moves", "beside DDP"]
    path = tmp_path / "gpu.json"
    ended = table(
        *("--small", "--json", str(path), "--only", *programs, "--ways", *ways),
        FARANDOLE_TEST_DEVICE="fake",
        FAKE_CUDA_DEVICES="1",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    read = json.loads(path.read_text())
    assert read["machine"]["devices"] == ["Fake device 0"]
    results = {(row["name"], row["result"]) for row in read["rows"]}
    for program, way in [
        ("load", "nccl-1"),
        ("load", "staged-2"),
        ("growth", "nccl-1"),
        ("copies", "staged-2"),
        ("copies", "peer-2"),
        ("load", "peer-2"),
    ]:
        assert (f"{program} {way}", "pass") in results
    # Bare NCCL and copies are measured, too, and the goals are there.
    goals = {row["goal"] for row in read["rows"]}
    assert {"<= 10 us more", ">= 85 %"} <= goals
    assert not [row for row in read["rows"] if row["result"] == "fail"]
    for row in read["rows"]:
        assert row["figure"] in ended.stdout


def test_a_program_that_fails_fails_the_table(tmp_path: Path) -> None:
    ended = table(
        *("--small", "--json", str(tmp_path / "gpu.json"), "--only", "copies", "--ways", "staged-2"),
        FARANDOLE_TEST_DEVICE="fake",
        FAKE_CUDA_FAIL="cuMemHostAlloc:*:2",
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "no pinned host memory" in ended.stdout


def test_without_a_device_one_sentence_says_what_to_do() -> None:
    ended = table(FARANDOLE_TEST_DEVICE="", LD_LIBRARY_PATH=str(fakes.FOLDER), FAKE_CUDA_DEVICES="0")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "the driver has no device for this process" in ended.stderr
    assert "docker run --gpus all" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""
