"""The examples run as their first lines say, and learn what they are to learn."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from tests.ray.helpers import await_free, release
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, ROOT, WHOLE, in_ray

CASES = {
    "torch_digits": ["'epoch': 80", "2 ranks, accuracy"],
    "tune_digits": ["best learning rate: 0.5", "2 ranks, accuracy"],
}


@pytest.mark.parametrize("example", ["torch_digits", "tune_digits"])
@in_ray
def test_an_example_learns(example: str) -> None:
    if example == "tune_digits" and not WHOLE:
        pytest.skip("takes long: the full matrix runs it")
    release()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ray" / f"{example}.py")],
        env={**os.environ, "RAY_CHDIR_TO_TRIAL_DIR": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    for text in CASES[example]:
        assert text in done.stdout, done.stdout[-4000:]
    await_free(HEAD_CPUS + OTHER_CPUS)
