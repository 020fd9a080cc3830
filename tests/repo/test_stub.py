"""The committed stub of the native module is the one its binary describes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "src" / "horovod" / "_core.pyi"


def test_stub_equals_the_generated_one(tmp_path: Path) -> None:
    generated = tmp_path / "_core.pyi"
    tools = Path(sys.executable).parent
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q"]
    for command in (
        [*stubgen, "-p", str(ROOT / "core/bindings/stub.txt"), "-m", "horovod._core", "-o", str(generated)],
        [str(tools / "ruff"), "format", "--quiet", "--config", str(ROOT / "pyproject.toml"), str(generated)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    if generated.read_text() != STUB.read_text():
        pytest.fail("src/horovod/_core.pyi is out of date: run `make stub`")
