"""Libraries that stand in for those of a vendor, on machines without devices."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["build"]

_SOURCE = Path(__file__).with_name("libraries.c")
_LIBRARIES = {"DRIVER": "libcuda.so.1", "NCCL": "libnccl.so.2", "MANAGEMENT": "libnvidia-ml.so.1"}
_LIMIT_S = 60.0


def build(folder: Path) -> Mapping[str, str]:
    """Compile them into this folder; returns the environment in which programs find them first."""
    for name, file in _LIBRARIES.items():
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-D{name}", "-o", folder / file, _SOURCE],
            check=True,
            timeout=_LIMIT_S,
        )
    return {"LD_LIBRARY_PATH": str(folder)}
