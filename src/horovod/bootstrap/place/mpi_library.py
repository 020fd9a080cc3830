"""Check for a usable MPI: ``mpi4py`` is installed and finds a library. Another process tries it, as a loaded
library stays loaded, and one that does not fit this machine may crash.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

from horovod.bootstrap.place.interpreter import as_here, program_words

__all__ = ["PROGRAM", "usable"]

_LIMIT_S = 60.0

PROGRAM = """
import mpi4py
mpi4py.rc.initialize = False  # the version is known without opening any port
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].rstrip(chr(0)).partition(", package")[0])
"""
"""For a Python of its own: prints which library there is, or fails."""


def usable() -> bool:
    """Return whether MPI can be used here. Does not start it."""
    if "mpi4py.MPI" in sys.modules:
        return True
    return importlib.util.find_spec("mpi4py") is not None and _loads()


@functools.cache
def _loads() -> bool:
    try:
        done = subprocess.run(
            [sys.executable, *program_words(PROGRAM)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=as_here(),
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
