"""The report of ``horovodrun --check-build``.

Frameworks are found by their metadata. What has to be loaded to know that it works is loaded in processes of
their own, all at once: a library that crashes there hurts nobody.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.launch.launchers.registry import CHOICES, LAUNCHERS
from horovod.launch.programs import ask
from horovod.version import __version__

__all__ = ["BuildReport", "build_report"]

_LIMIT_S = 60.0
_CORE = "horovod._core"
_MPI = "horovod.backends.mpi"
_NCCL = "horovod.backends.nccl"

# Rows of the report: what people call it, its module, the distributions that may bring it, our frontend.
_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"), "horovod.tensorflow"),
    ("PyTorch", "torch", ("torch",), "horovod.torch"),
    ("MXNet", "mxnet", ("mxnet",), "horovod.mxnet"),
)

# Programs that load something and print what they found.
_PROBES: Mapping[str, str] = {
    "core": "import horovod._core as core; print(core.__file__)",
    "mpi": """
import mpi4py
mpi4py.rc.initialize = False  # the version is known without opening any port
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].rstrip(chr(0)).partition(", package")[0])
""",
    "nccl": """
import ctypes, glob, os, sys
places = [os.path.join(folder, "nvidia", "nccl*", "lib", "libnccl.so*") for folder in sys.path]
wheels = [path for place in places for path in glob.glob(place)]
for path in (*wheels, "libnccl.so.2", "libnccl.so"):
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        library, why = None, str(error)
    if library is not None:
        number = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
        major, rest = divmod(number.value, 10000)
        print(f"NCCL {major}.{rest // 100}.{rest % 100} ({path})")
        break
else:
    sys.exit(why)
""",
}


@dataclass(frozen=True)
class _Check:
    """One box of the report, and what was found."""

    name: str
    available: bool
    found: str


@dataclass(frozen=True)
class BuildReport:
    """What this installation can do."""

    groups: Mapping[str, Sequence[_Check]]
    facts: Mapping[str, object]
    working: bool
    """The native core can be loaded, without which nothing works."""

    def text(self, *, verbose: bool = False) -> str:
        """As people read it; `verbose` adds why."""
        lines = [f"Horovod v{__version__}:"]
        if verbose:
            lines.insert(0, "")
        for title, checks in self.groups.items():
            lines += ["", f"{title}:"]
            for check in checks:
                why = f"  ({check.found})" if verbose else ""
                lines.append(f"    [{'X' if check.available else ' '}] {check.name}{why}")
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """As programs read it."""
        groups = {
            title.rpartition(" ")[2].lower(): {
                check.name: {"available": check.available, "found": check.found} for check in checks
            }
            for title, checks in self.groups.items()
        }
        report = {"version": __version__, "working": self.working, **groups, **self.facts}
        return json.dumps(report, indent=2) + "\n"


def build_report() -> BuildReport:
    """Which frameworks, controllers and operations this installation has."""
    probes = _probe_all()
    core, why_core = probes["core"]
    own = f"the built-in transport, which takes Gloo's place: {why_core}" if core else f"{_CORE}: {why_core}"
    groups = {
        "Available Frameworks": [_framework(*row, core=core) for row in _FRAMEWORKS],
        "Available Controllers": [
            _Check("MPI", core and shutil.which("mpirun") is not None, _mpirun()),
            _Check("Gloo", core, own),
        ],
        "Available Tensor Operations": [
            _operations("NCCL", _NCCL, *probes["nccl"], core=core),
            _Check("DDL", False, "not supported"),
            _Check("CCL", False, "not supported"),
            _operations("MPI", _MPI, *probes["mpi"], core=core),
            _Check("Gloo", core, own),
        ],
    }
    return BuildReport(groups, _facts(), core)


def _framework(name: str, module: str, distributions: Sequence[str], frontend: str, *, core: bool) -> _Check:
    if not _module_exists(module):
        return _Check(name, False, f"module {module} is not installed")
    version = next(filter(None, map(_version, distributions)), "of unknown version")
    if not _module_exists(frontend):
        return _Check(name, False, f"{module} {version} is installed, but this version has no {frontend}")
    if not core:
        return _Check(name, False, f"{module} {version} is installed, but {_CORE} cannot be loaded")
    return _Check(name, True, f"{module} {version}, used through {frontend}")


def _operations(name: str, backend: str, loads: bool, found: str, *, core: bool) -> _Check:
    """Operations of a library that is loaded when they are first used."""
    if not loads:
        return _Check(name, False, f"cannot be loaded: {found}")
    if not _module_exists(backend):
        return _Check(name, False, f"{found} is there, but this version does not use it")
    return _Check(name, core, found)


def _mpirun() -> str:
    path = shutil.which("mpirun")
    if path is None:
        return "mpirun is not on PATH; it is not needed"
    return f"{path}, used by --launcher mpirun; ranks find each other without MPI"


def _probe_all() -> dict[str, tuple[bool, str]]:
    """For each probe whether it works, and what it found or why not."""
    children = {
        name: subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for name, program in _PROBES.items()
    }
    found = {}
    for name, child in children.items():
        try:
            stdout, stderr = child.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            found[name] = False, f"loading it took more than {_LIMIT_S:g} s"
            continue
        lines = (stdout if child.returncode == 0 else stderr).decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "without a word"
        crashed = f"loading it ended with signal {-child.returncode}: {said}"
        found[name] = child.returncode == 0, crashed if child.returncode < 0 else said
    return found


def _facts() -> dict[str, object]:
    """What a report of a problem should hold besides."""
    return {
        "distribution": _version("rueda"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "devices": _devices(),
        "launchers": {name: shutil.which(LAUNCHERS[name].program or name) for name in CHOICES},
    }


def _devices() -> list[str]:
    """What NVIDIA's tool lists, a line each."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader"]
    said = ask(query, _LIMIT_S)
    return said.stdout.splitlines() if said.status == 0 else []


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
