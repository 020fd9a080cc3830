"""The report of ``horovodrun --check-build``. Nothing is imported for it, so nothing can crash it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import horovod

__all__ = ["build_report"]


@dataclass(frozen=True)
class _Check:
    """One box of the report, and what was found."""

    name: str
    available: bool
    found: str


# Rows of the report: what people call it, its module, the distributions that may bring it, our frontend.
_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"), "horovod.tensorflow"),
    ("PyTorch", "torch", ("torch",), "horovod.torch"),
    ("MXNet", "mxnet", ("mxnet",), "horovod.mxnet"),
)
_CORE = "horovod._core"
_NO_CORE = f"{_CORE} is missing: build or reinstall it"


def build_report(*, verbose: bool = False) -> str:
    """Which frameworks, controllers and operations this installation has; `verbose` adds why."""
    core = _module_exists(_CORE)
    host_memory = "the built-in transport" if core else _NO_CORE
    groups: Sequence[tuple[str, Sequence[_Check]]] = (
        ("Available Frameworks", [_framework(*row) for row in _FRAMEWORKS]),
        (
            "Available Controllers",
            [
                _Check("MPI", False, "this version does not use MPI"),
                _Check("Gloo", core, host_memory),
            ],
        ),
        (
            "Available Tensor Operations",
            [
                _Check("NCCL", False, "this version does not use NCCL; tensors on devices are not served"),
                _Check("DDL", False, "not supported"),
                _Check("CCL", False, "not supported"),
                _Check("MPI", False, "this version does not use MPI"),
                _Check("Gloo", core, host_memory),
            ],
        ),
    )
    lines = [f"Horovod v{horovod.__version__}:"]
    if verbose:
        lines.insert(0, "")
    for title, checks in groups:
        lines += ["", f"{title}:"]
        for check in checks:
            why = f"  ({check.found})" if verbose else ""
            lines.append(f"    [{'X' if check.available else ' '}] {check.name}{why}")
    return "\n".join(lines) + "\n"


def _framework(name: str, module: str, distributions: Sequence[str], frontend: str) -> _Check:
    if not _module_exists(module):
        return _Check(name, False, f"module {module} is not installed")
    version = next(filter(None, map(_version, distributions)), "of unknown version")
    if not _module_exists(frontend):
        return _Check(name, False, f"{module} {version} is installed, but this version has no {frontend}")
    if not _module_exists(_CORE):
        return _Check(name, False, f"{module} {version} is installed, but {_NO_CORE}")
    return _Check(name, True, f"{module} {version}, used through {frontend}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent is missing, or a module without a specification
        return False
