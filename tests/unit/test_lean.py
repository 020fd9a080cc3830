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


def test_pytorch_imports_its_compiler_for_those_who_compile() -> None:
    """In their processes functions are hidden from the compiler as without this folder."""
    script = """if True:
        import sys
        import torch

        parameter = torch.nn.Parameter(torch.ones(1))
        torch.optim.Adam([parameter]).zero_grad()
        print("torch._dynamo" in sys.modules)

        import torch._dynamo

        def double(number):
            return 2 * number

        hidden = torch._compile._disable_dynamo(recursive=False)(double)
        print(hidden.__name__, hidden(3), hasattr(double, "__dynamo_disable"))
        torch.optim.Adam([parameter]).zero_grad()
    """
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(LEAN)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "False\ndouble 6 True\n"
