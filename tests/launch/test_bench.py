"""``python -m horovod.bench`` on real ranks. What it measures is not looked at: only that it does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.launch.launching import LIMIT_S, PYTHON, environment, horovodrun

from horovod.bench.operations import OPERATIONS

pytestmark = pytest.mark.timeout(60)

QUICK = ["--rounds", "2", "--time-s", "0.001"]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "horovod.bench", *words],
        env=environment({"OMP_NUM_THREADS": "1"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_every_collective_beside_gloo(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = bench("-np", "2", "all", "--sizes", "64,1K", *QUICK, "--compare", "gloo", "--json", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert not any("<stdout>" in line for line in lines)
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert len(rows) == 2 * 6 + 1
    assert all(len(row) == 12 for row in rows)
    titles = [line.removeprefix("# ") for line in lines]
    assert [title for title in titles if title in OPERATIONS] == [*OPERATIONS]
    told = json.loads(file.read_text())
    assert (told["format"], told["ranks"], told["rounds"], told["one_machine"]) == (1, 2, 2, True)
    assert {"cpu", "memory", "system"} <= set(told["machine"])
    assert {"python", "torch"} <= set(told["versions"])
    assert [result["operation"] for result in told["results"]][::2] == [*OPERATIONS]
    for result in told["results"]:
        libraries = {"farandole", "gloo"} | ({"limit"} if result["bytes"] else set())
        assert set(result["libraries"]) == libraries
        assert all(len(each["rounds"]) == 2 for each in result["libraries"].values())
        assert bool(result["path"]) == bool(result["bytes"])


def test_in_a_job_rank_0_alone_speaks_and_a_set_without_it_measures() -> None:
    words = ["allgather", "--sizes", "6", "--process-set", "1,2", "--dtype", "uint8", "--asynchronous", "2"]
    done = horovodrun(
        "-np", "3", PYTHON, "-m", "horovod.bench", *words, *QUICK, extra={"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert all(line.startswith("[0]<stdout>:") for line in lines)
    (row,) = [line.split(":", 1)[1].split() for line in lines if not line.startswith("[0]<stdout>:#")]
    assert row[:4] == ["6", "3", "uint8", "-"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["allreduce"], "how many processes? Give -np N"),
        (["-np", "2", "--dtype", "float33"], "--dtype 'float33' does not exist"),
    ],
)
def test_wrong_arguments_start_nothing(words: list[str], said: str) -> None:
    done = bench(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_what_is_missing_can_be_said_without_pytorch() -> None:
    code = "import sys, horovod.bench.__main__, horovod.bench.requirements; sys.exit('torch' in sys.modules)"
    done = subprocess.run([PYTHON, "-c", code], env=environment(), timeout=LIMIT_S, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-np", "3"], b"-np 3: this job has 2 processes already"),
        (["--op", "avg"], b"--op 'avg' does not exist"),
    ],
)
def test_wrong_arguments_inside_a_job_are_said_once(words: list[str], said: bytes) -> None:
    done = horovodrun("-np", "2", PYTHON, "-m", "horovod.bench", *words)
    assert done.returncode == 2
    assert done.stderr.count(b"<stderr>:horovod.bench: " + said) == 1
