"""What PyTorch asks of a CUDA device, answered by the driver beside: see ``device``.

PyTorch looks for it when it is imported, so this package must come first. The environment must be that of
``tests.fakes.environment()``.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.fakes import FOLDER

__all__ = ["GUARD"]

_SOURCE: Final = Path(__file__).with_name("guard.cpp")
_LIMIT_S: Final = 120.0


def _compiled() -> Path:
    """The library of ``guard.cpp`` for this PyTorch; made if it is not there yet."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch = Path(found.origin).parent
    made = FOLDER / f"guard-{importlib.metadata.version('torch')}.so"
    if made.exists() and made.stat().st_mtime >= _SOURCE.stat().st_mtime:
        return made
    partial = made.with_suffix(f".{os.getpid()}")
    libraries = torch / "lib"
    words = [
        *("c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-isystem", torch / "include", _SOURCE),
        *("-o", partial, "-L", libraries, "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"),
        *("-L", FOLDER, "-l:libcuda.so.1"),
    ]
    subprocess.run([str(word) for word in words], check=True, timeout=_LIMIT_S)
    partial.replace(made)  # several ranks may do this at the same time
    return made


assert "torch" not in sys.modules, "too late: PyTorch has asked for its devices"
GUARD: Final = ctypes.CDLL(str(_compiled()), mode=ctypes.RTLD_GLOBAL)
GUARD.standInStream.restype = ctypes.c_int64
