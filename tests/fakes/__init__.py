"""Where the libraries are that stand in for a vendor's, and how a process is told to take them.

`make test-python` builds them. What they do, and which variables they read, is in `fake_cuda.h`
and `fake_nccl.h`.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FOLDER", "environment"]

#: Has ``libcuda.so.1`` and ``libnccl.so.2``.
FOLDER = Path(os.environ.get("FARANDOLE_FAKES") or Path(__file__).parents[2] / "build" / "release" / "fakes")


def environment(**settings: object) -> dict[str, str]:
    """This process's environment, with the fakes before all other libraries, and variables of theirs.

    ``environment(FAKE_CUDA_DEVICES=2)``
    """
    found = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    found["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("LD_LIBRARY_PATH")]))
    return found
