"""The examples run as their first lines say, and learn what they are to learn."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, environment

ROOT = Path(__file__).resolve().parents[2]
WHOLE = os.environ.get("FARANDOLE_FULL_MATRIX") == "1"


def run(size: int, example: str, *arguments: str, status: int = 0, **variables: str) -> str:
    """What an example prints with ``size`` ranks; fails if it ends with another status."""
    return launched(size, str(ROOT / "examples" / example), *arguments, status=status, **variables)


def launched(size: int, *command: str, status: int = 0, **variables: str) -> str:
    """What a job of Python prints."""
    job = subprocess.run(
        [*COMMAND, "-np", str(size), sys.executable, *command],
        env=environment({"OMP_NUM_THREADS": "1", **variables}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    assert job.returncode == status, job.stdout[-4000:]
    return job.stdout


def figure(said: str, pattern: str) -> float:
    found = re.search(pattern, said)
    assert found is not None, said[-2000:]
    return float(found[1])


def test_the_demo_runs_as_a_rank_of_a_job() -> None:
    said = launched(3, "-m", "horovod.demo", "--epochs", "12")
    assert "3 processes" in said


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_digits_are_learned_by_keras(backend: str) -> None:
    said = run(2, "keras_digits.py", "--epochs", "6", "--reach", "0.93", KERAS_BACKEND=backend)
    assert figure(said, r"accuracy: ([\d.]+)%") >= 93


@pytest.mark.parametrize(
    ("example", "arguments"),
    [
        ("tensorflow_digits.py", ["--epochs", "6", "--reach", "0.95"]),
        ("tensorflow1_digits.py", ["--reach", "0.93"]),
    ],
)
def test_digits_are_learned_by_tensorflow(example: str, arguments: list[str]) -> None:
    assert figure(run(2, example, *arguments), r"accuracy: ([\d.]+)%") >= 93


def test_images_are_learned_and_a_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = ["--checkpoints", str(tmp_path)]
    said = run(1, "torch_images.py", "--epochs", "1", "--reach", "0.999", *folder, status=1)
    assert "began after epoch 0" in said
    assert "the test accuracy stayed below 100%" in said, "who learns too little says so and fails"
    said = run(2, "torch_images.py", "--epochs", "3", "--reach", "0.9", *folder)
    assert "began after epoch 1" in said, "another number of ranks goes on where one process ended"
    assert "epoch  1/3" not in said
    assert figure(said, r"test accuracy: ([\d.]+)%") >= 90


def test_a_language_model_learns_in_mixed_precision() -> None:
    said = run(2, "torch_language.py", "--steps", "50", "--mixed", "--reach", "4.0", "--write", "20")
    before = figure(said, r"bits for a letter: ([\d.]+) before")
    after = figure(said, r"before, ([\d.]+) after")
    # Letters that are only counted need 4.7 bits in this text: less shows that it has learned what follows.
    assert after < 4.0 < 6.0 < before


def test_a_table_is_learned_with_adasum() -> None:
    said = run(2, "torch_tabular.py", "--epochs", "20", "--adasum", "--reach", "0.3")
    assert figure(said, r"variance explained: ([\d.]+)") >= 0.3


def test_two_process_sets_train_two_models_at_once() -> None:
    said = run(4, "torch_tabular.py", "--epochs", "20", "--folds", "2", "--reach", "0.3")
    assert "2 fold(s) of 2 rank(s)" in said
    first, second = (
        figure(said, pattern) for pattern in (r"explained: ([\d.]+),", r"explained: [\d.]+, ([\d.]+);")
    )
    assert first != second, "each fold has a model of its own"


@pytest.mark.parametrize("framework", ["torch", "tensorflow", *(["keras"] if WHOLE else [])])
def test_the_benchmark_measures_a_step_with_its_exchange(framework: str) -> None:
    small = ["--batch-size", "4", "--steps", "3", "--warmup", "2"]
    said = run(2, "synthetic_benchmark.py", "--framework", framework, *small)
    each = figure(said, rf"{framework}: ([\d.]+) images/s for each process")
    assert figure(said, r"process, ([\d.]+) in all") == pytest.approx(2 * each, abs=0.2)
    # Each parameter is a float32, and each is exchanged once in each step.
    assert figure(said, r"exchanged: ([\d.]+) MB") == pytest.approx(1_540_516 * 4 / 1e6, abs=0.1)


def test_an_elastic_job_goes_on_without_a_process_that_is_killed(tmp_path: Path) -> None:
    script = ROOT / "examples" / "elastic" / "digits.py"
    launch = [*COMMAND, "-np", "2", "--min-np", "1"]
    with subprocess.Popen(
        [*launch, "--host-discovery-script", str(script.with_name("hosts.sh")),
         sys.executable, str(script), "--reach", "0.85"],
        env=environment({"OMP_NUM_THREADS": "1"}),
        cwd=tmp_path,  # there is no file of hosts
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        try:
            said = ""
            for line in job.stdout:
                said += line
                if found := re.search(r"process (\d+) is rank 1 of 2, epoch 0", line):
                    os.kill(int(found[1]), signal.SIGKILL)
            assert job.wait(timeout=60) == 0, said[-4000:]
        finally:
            job.kill()
    assert "is rank 0 of 1, epoch" in said
    assert "30/30  1 process(es)" in said
    assert figure(said, r"test accuracy: ([\d.]+)%") >= 85
