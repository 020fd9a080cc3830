"""Libraries of a vendor, for every test here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fakes import FOLDER

_SOURCE = Path(__file__).with_name("odd_libraries.c")
_LIMIT_S = 60.0


def _compile(folder: Path, **libraries: str) -> Path:
    for name, file in libraries.items():
        words = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-D{name}", "-o"]
        subprocess.run([*words, folder / file, _SOURCE], check=True, timeout=_LIMIT_S)
    return folder


@pytest.fixture(scope="session")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NCCL and the management library."""
    folder = tmp_path_factory.mktemp("vendor")
    return _compile(folder, NCCL="libnccl.so.2", MANAGEMENT="libnvidia-ml.so.1")


@pytest.fixture(scope="session")
def fakes(vendor: Path) -> Mapping[str, str]:
    """The environment of a process that finds these, and the driver of `tests.fakes`."""
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(vendor), str(FOLDER)])}


@pytest.fixture(scope="session")
def odd(vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The same with the driver of `odd_libraries.c`."""
    folder = _compile(tmp_path_factory.mktemp("odd"), DRIVER="libcuda.so.1")
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), str(vendor)])}
