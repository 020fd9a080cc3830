"""The examples run as their first lines say, and learn what they are to learn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.conftest import WHOLE, submit_arguments

pytest.importorskip("pyspark", reason="PySpark is not installed")

# test_runner.py and estimators/test_torch.py do what these do.
ELSEWHERE = {"keras_digits", "estimator_torch", "estimator_keras"}
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, which is not installed")
@pytest.mark.parametrize(
    ("example", "arguments", "says"),
    [
        ("torch_digits", [], "2 ranks, accuracy"),
        ("keras_digits", [], "np=2: "),
        ("estimator_torch", [], "accuracy"),
        ("estimator_keras", ["--rows=20000", "--batch-size=128"], "of the sales"),
    ],
)
def test_an_example_learns(example: str, arguments: list[str], says: str) -> None:
    if example in ELSEWHERE and not WHOLE:
        pytest.skip("other tests take the same steps: the full matrix runs the example")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark" / f"{example}.py"), *arguments],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": submit_arguments("local[2]"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "KERAS_BACKEND": "torch",
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert says in done.stdout
