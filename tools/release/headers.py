"""Where the C headers of each Python are: in a folder that is named, or with an interpreter on the path.

One set serves all machines: see ``foreign_python.cmake``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.release.targets import NEWEST, Abi

__all__ = ["HeadersError", "find", "version_of"]

_ASK = "import sysconfig; print(sysconfig.get_path('include'))"


class HeadersError(Exception):
    """Headers are missing, or are of another Python; the sentence says which and what to try."""


def find(abi: Abi, named: Mapping[str, Path]) -> Path:
    """The folder that holds ``Python.h`` of a Python that ``abi`` serves.

    Args:
        named: folders by the Python of the tag (``cp310``); these come first.

    Raises:
        HeadersError: there is none, or the named one is of another version.
    """
    if (folder := named.get(abi.python)) is not None:
        version = version_of(folder)
        if version is None or not abi.serves(version):
            found = "no Python" if version is None else f"Python {version[0]}.{version[1]}"
            raise HeadersError(f"{folder} holds headers of {found}, and {abi.python} was to be compiled for.")
        return folder
    for folder in _of_interpreters(abi):
        version = version_of(folder)
        if version is not None and abi.serves(version):
            return folder
    wanted = f"Python {abi.oldest[0]}.{abi.oldest[1]}{' or newer' if abi.stable else ''}"
    raise HeadersError(
        f"No headers of {wanted} for the wheel {abi.python}: no interpreter on the path brings them. "
        f"Name a folder that has Python.h: --python-include {abi.python}=FOLDER"
    )


def version_of(folder: Path) -> tuple[int, int] | None:
    """The Python whose headers these are; ``None`` if there are none."""
    file = folder / "patchlevel.h"
    if not file.is_file() or not (folder / "Python.h").is_file():
        return None
    found = re.search(r'#define PY_VERSION\s+"(\d+)\.(\d+)', file.read_text())
    return (int(found[1]), int(found[2])) if found else None


def _of_interpreters(abi: Abi) -> Iterator[Path]:
    last = NEWEST[1] if abi.stable else abi.oldest[1]
    for minor in range(abi.oldest[1], last + 1):
        program = shutil.which(f"python3.{minor}")
        if program is None:
            continue
        answer = subprocess.run([program, "-c", _ASK], capture_output=True, text=True, check=False)
        if answer.returncode == 0:  # a program of that name may only tell how to install Python
            yield Path(answer.stdout.strip())
