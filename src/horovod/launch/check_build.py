"""The report of ``horovodrun --check-build``.

Frameworks are found by their metadata. What has to be loaded to know that it works is loaded in processes of
their own, all at once: a library that crashes there hurts nobody.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from horovod.bootstrap.place import mpi_library
from horovod.bootstrap.place.cores import usable_cores
from horovod.bootstrap.place.interpreter import as_here, program_words
from horovod.devices import ways
from horovod.devices.inventory import Inventory, take_inventory
from horovod.devices.nccl import version_text
from horovod.devices.text import facts, section
from horovod.launch.contracts.registry import CHOICES, LAUNCHERS
from horovod.version import __version__

__all__ = ["BuildReport", "build_report", "own_version"]

_LIMIT_S = 60.0
_CORE = "horovod._core"
_MPI = "horovod.backends.mpi"

# Rows of the report: what people call it, its module, the distributions that may bring it, our frontend.
_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"), "horovod.tensorflow"),
    ("PyTorch", "torch", ("torch",), "horovod.torch"),
    ("MXNet", "mxnet", ("mxnet",), "horovod.mxnet"),
)

# Programs that load something and print what they found.
_PROBES: Mapping[str, str] = {
    "core": "import horovod._core as core; print(core.__file__)",
    "mpi": mpi_library.PROGRAM,
    "cipher": """
import horovod._core as core, sys
missing = core.missing_cipher()
if missing:
    sys.exit(missing)
print("AES-256-GCM of OpenSSL")
""",
    "direct": """
import ctypes, os, sys
if not hasattr(os, "pidfd_open"):
    sys.exit("this Python or kernel has no pidfd_open")
place = ctypes.create_string_buffer(8)
ready, over = os.pipe(), os.pipe()
owner = os.fork()
if owner == 0:
    place.raw = b"of owner"
    os.write(ready[1], b"x")
    os.close(over[1])
    os.read(over[0], 1)
    os._exit(0)
os.read(ready[0], 1)
reader = os.fork()  # beside the owner, as ranks are: a parent may often do more
if reader == 0:
    here = ctypes.create_string_buffer(8)
    ours, theirs = ((ctypes.c_size_t * 2)(ctypes.addressof(each), 8) for each in (here, place))
    libc = ctypes.CDLL(None, use_errno=True)
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    count = libc.process_vm_readv(owner, ours, one, theirs, one, none)
    os._exit(0 if count == 8 and here.raw == b"of owner" else ctypes.get_errno() or 1)
status = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
os.close(over[1])
os.waitpid(owner, 0)
if status:
    sys.exit(f"ranks may not read each other's memory: {os.strerror(status)}")
print("ranks read each other's memory")
""",
}


@dataclass(frozen=True)
class _Check:
    """One box of the report, and what was found."""

    name: str
    available: bool
    found: str
    version: str = ""


@dataclass(frozen=True)
class BuildReport:
    """Capabilities of this installation."""

    groups: Mapping[str, Sequence[_Check]]
    inventory: Inventory
    facts: Mapping[str, object]
    working: bool
    """The native core can be loaded, without which nothing works."""

    def text(self, *, verbose: bool = False) -> str:
        """Write the report for people; `verbose` adds reasons."""
        lines = [f"Horovod v{__version__}: the interface, of {own_version()}"]
        if verbose:
            lines.insert(0, "")
        for title, checks in self.groups.items():
            lines += ["", f"{title}:"]
            for check in checks:
                version = f"  {check.version}" if check.available and check.version else ""
                why = f"  ({check.found})" if verbose else ""
                lines.append(f"    [{'X' if check.available else ' '}] {check.name}{version}{why}")
        return "\n".join([*lines, "", section(self.inventory)])

    def json(self) -> str:
        """Write the report for programs."""
        groups = {
            title.rpartition(" ")[2].lower(): {
                check.name: {
                    "available": check.available,
                    "found": check.found,
                    **({"version": check.version} if check.version else {}),
                }
                for check in checks
            }
            for title, checks in self.groups.items()
        }
        report = {
            "version": __version__, "working": self.working, **groups, **self.facts,
            **facts(self.inventory),
        }  # fmt: skip
        return json.dumps(report, indent=2) + "\n"


def build_report() -> BuildReport:
    """Find the frameworks, controllers, operations, transports and devices that this installation can use."""
    children = _start_probes()
    inventory = take_inventory()  # asks others, at the same time
    probes = {name: _answer(child) for name, child in children.items()}
    core, why_core = probes["core"]
    own = f"the built-in transport, which takes Gloo's place: {why_core}" if core else f"{_CORE}: {why_core}"
    mpi = _operations("MPI", _MPI, *probes["mpi"], core=core)  # as mpi_built() has it
    groups = {
        "Available Frameworks": [_framework(*row, core=core) for row in _FRAMEWORKS],
        "Available Controllers": [
            replace(mpi, found=f"{mpi.found}; {_mpirun()}"),
            _Check("Gloo", core, own),
        ],
        "Available Tensor Operations": [
            _nccl(inventory, core=core),
            _Check("DDL", False, "not supported"),
            _Check("CCL", False, "not supported"),
            mpi,
            _Check("Gloo", core, own),
        ],
        "Available Transports": [
            _Check("Shared memory", core, "between ranks of a machine" if core else own),
            _Check("Direct copies", core and probes["direct"][0], probes["direct"][1]),
            _Check("TCP", core, "between hosts" if core else own),
            _Check("TCP with encryption", *probes["cipher"]),
        ],
    }
    return BuildReport(groups, inventory, _facts(), core)


def own_version() -> str:
    """This package's name and version; the other version is that of the interface."""
    return f"Farandole {_version('farandole') or '(of unknown version: it was not installed as a package)'}"


def _framework(name: str, module: str, distributions: Sequence[str], frontend: str, *, core: bool) -> _Check:
    if not _module_exists(module):
        return _Check(name, False, f"module {module} is not installed")
    version = next(filter(None, map(_version, distributions)), "of unknown version")
    if not _module_exists(frontend):
        return _Check(name, False, f"{module} {version} is installed, but this version has no {frontend}")
    if not core:
        return _Check(name, False, f"{module} {version} is installed, but {_CORE} cannot be loaded")
    return _Check(name, True, f"{module} {version}, used through {frontend}", version)


def _operations(name: str, backend: str, loads: bool, found: str, *, core: bool) -> _Check:
    """Operations of a library that is loaded when they are first used."""
    if not loads:
        return _Check(name, False, f"cannot be loaded: {found}")
    if not _module_exists(backend):
        return _Check(name, False, f"{found} is there, but this version does not use it")
    return _Check(name, core, found)


def _nccl(inventory: Inventory, *, core: bool) -> _Check:
    if inventory.nccl is None:
        return _Check("NCCL", False, inventory.nccl_problem)
    found = str(inventory.nccl)
    if ways.NCCL not in ways.SERVED:
        return _Check("NCCL", False, f"{found} is there, but this version does not use it")
    return _Check("NCCL", core, found, version_text(inventory.nccl.version))


def _mpirun() -> str:
    path = shutil.which("mpirun")
    if path is None:
        return "mpirun is not on PATH; it is not needed"
    return f"{path}, used by --launcher mpirun; ranks find each other without MPI"


def _start_probes() -> dict[str, subprocess.Popen[bytes]]:
    return {
        name: subprocess.Popen(
            [sys.executable, *program_words(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=as_here(),
        )
        for name, program in _PROBES.items()
    }


def _answer(child: subprocess.Popen[bytes]) -> tuple[bool, str]:
    """Outcome of a probe: whether it works, and what it found or why not."""
    try:
        stdout, stderr = child.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return False, f"loading it took more than {_LIMIT_S:g} s"
    lines = (stdout if child.returncode == 0 else stderr).decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else "without a word"
    crashed = f"loading it ended with signal {-child.returncode}: {said}"
    return child.returncode == 0, crashed if child.returncode < 0 else said


def _facts() -> dict[str, object]:
    """Further facts that belong in a report of a problem."""
    return {
        "distribution": _version("farandole"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": usable_cores()[0],
        "interfaces": [name for _, name in socket.if_nameindex()],
        "launchers": {name: shutil.which(LAUNCHERS[name].program or name) for name in CHOICES},
    }


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
