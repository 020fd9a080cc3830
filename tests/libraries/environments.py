"""Programs of others, each in a virtual environment of its own, run with the library that was built here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["environment", "horovodrun", "nightly"]

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
LIMIT_S = 400.0
nightly = pytest.mark.skipif(
    not os.environ.get("FARANDOLE_FULL_MATRIX"),
    reason="needs an environment of 1 GB; FARANDOLE_FULL_MATRIX=1 runs it",
)


def environment(name: str) -> Path:
    """The folder of the programs of ``.venv-NAME``.

    Raises:
        AssertionError: it was not made; ``make test-all`` makes it.
    """
    folder = ROOT / f".venv-{name}" / "bin"
    assert (folder / "python").exists(), f"{folder} is missing; try: make venv-libraries"
    return folder


def horovodrun(
    folder: Path, *command: str, cwd: Path, ranks: int = RANKS, extra: dict[str, str] | None = None
) -> str:
    """What a command of ``folder`` prints on ``ranks`` ranks; the test fails if it does not succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    launch = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    done = subprocess.run(
        [*launch, str(folder / command[0]), *command[1:]],
        cwd=cwd,
        env={
            **kept,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "src"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **(extra or {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout
