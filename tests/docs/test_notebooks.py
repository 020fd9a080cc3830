"""The notebooks of the examples run, cell after cell, and are kept without output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: Path) -> list[str]:
    """The code of a notebook."""
    found = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: str(path.name))
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    script = tmp_path / "cells.py"  # in a process of its own, as the kernel is
    script.write_text("\n\n".join(cells(notebook)) + "\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "accuracy " in done.stdout
    assert "ranks agree: True" in done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: str(path.name))
def test_a_notebook_is_kept_without_output(notebook: Path) -> None:
    found = json.loads(notebook.read_text())["cells"]
    assert [cell["id"] for cell in found if cell.get("outputs") or cell.get("execution_count")] == []
