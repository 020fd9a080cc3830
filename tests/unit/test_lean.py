"""What `tests/lean` hides, and from whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAN = Path(__file__).resolve().parents[1] / "lean"


@pytest.mark.parametrize(
    ("importer", "wanted", "backend", "found"),
    [
        ("keras", "matplotlib", "tensorflow", False),
        ("keras", "jax", "tensorflow", False),
        ("keras", "jax", "jax", True),
        ("tensorflow", "jax", "jax", False),
        ("keras", "h5py", "tensorflow", True),
        ("a_script", "matplotlib", "tensorflow", True),
    ],
)
def test_it_depends_on_who_asks(
    tmp_path: Path, importer: str, wanted: str, backend: str, found: bool
) -> None:
    """The backend is that of the moment, as scripts choose it after Python has started."""
    (tmp_path / f"{wanted}.py").write_text("")
    (tmp_path / f"{importer}.py").write_text(
        f"try:\n    import {wanted}\n    print('found')\nexcept ImportError:\n    print('hidden')\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", f"import os; os.environ['KERAS_BACKEND'] = '{backend}'; import {importer}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(LEAN), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == ("found\n" if found else "hidden\n")
