"""Importing what lacks its framework or native part, or does not exist yet: one error that says more."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"


def error_of(code: str, *options: str) -> str:
    """The last line of what a program of its own prints as its end."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "framework", "called"),
    [
        ("horovod.torch", "torch", "PyTorch"),
        ("horovod.torch.elastic", "torch", "PyTorch"),
        ("horovod.tensorflow", "tensorflow", "TensorFlow"),
        ("horovod.tensorflow.keras", "tensorflow", "TensorFlow"),
        ("horovod.keras", "keras", "Keras"),
        ("horovod.spark", "pyspark", "PySpark"),
    ],
)
def test_a_framework_that_is_not_installed(module: str, framework: str, called: str) -> None:
    # Isolated, so that nothing but the standard library is there.
    said = error_of(f"import sys; sys.path.insert(0, {str(SOURCES)!r}); import {module}", "-I", "-S")
    frontend = module if framework in ("keras", "pyspark") else f"horovod.{framework}"
    assert said == (
        f"ModuleNotFoundError: {frontend} needs {called}, which is not installed here. "
        f"Install it: {sys.executable} -m pip install {framework}"
    )


def test_the_framework_that_keras_is_to_compute_with_is_not_installed() -> None:
    said = error_of(
        "import os, sys; os.environ['KERAS_BACKEND'] = 'jax'; sys.modules['jax'] = None; import horovod.keras"
    )
    assert "Keras is to compute with JAX, which is not installed here. Install it: " in said
    assert said.endswith("-m pip install jax. Or choose what is installed: KERAS_BACKEND=torch")


@pytest.mark.parametrize("frontend", ["torch", "tensorflow", "keras"])
def test_a_native_module_that_cannot_be_loaded(frontend: str) -> None:
    said = error_of(f"import sys; sys.modules['horovod._core'] = None; import horovod.{frontend} as hvd")
    assert said.startswith(f"ImportError: horovod.{frontend} cannot be used: its native module cannot be")
    assert "import of horovod._core halted" in said  # the cause
    assert said.endswith("make the module with `make build`.")


def test_a_native_module_for_another_python(tmp_path: Path) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    for name in ("__init__.py", "version.py", "requirements.py"):
        (package / name).write_text((SOURCES / "horovod" / name).read_text())
    (package / "_core.cpython-39-x86_64-linux-gnu.so").touch()
    code = (
        f"import sys, types; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['torch'] = types; "
        "from horovod.requirements import require; require('horovod.torch', 'torch')"
    )
    said = error_of(code, "-I", "-S")
    assert f"there is no native module _core.{sys.implementation.cache_tag}" in said
    assert "for this Python" in said
    assert "_core.cpython-39-x86_64-linux-gnu.so. Install the package again: " in said


@pytest.mark.parametrize("module", ["mxnet", "jax", "jax.elastic"])
def test_modules_that_are_to_come(module: str) -> None:
    first = f"horovod.{module.partition('.')[0]}"
    with pytest.raises(ModuleNotFoundError, match=f"{first} does not exist yet: .* is to come") as caught:
        importlib.import_module(f"horovod.{module}")
    assert caught.value.name == first
    # Who only asks hears of no such module, and of no error.
    assert importlib.util.find_spec(first) is None


@pytest.mark.parametrize("name", ["mxnet", "jax"])
def test_a_name_that_is_to_come_says_so_too(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"^horovod.{name} does not exist yet: .* is to come"):
        exec(f"from horovod import {name}")
    assert not hasattr(importlib.import_module("horovod"), name)


def test_other_modules_that_do_not_exist_are_as_always() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod\.nothing'$"):
        importlib.import_module("horovod.nothing")
