"""Search for the NCCL library, and its version.

The same library must be found by everybody who asks: two of them in one process would each have buffers on
the device. So the one that a framework has loaded already comes first.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from horovod.bootstrap.place.proc import lines

__all__ = ["LIBRARY", "OLDEST", "Nccl", "NcclError", "find_nccl", "nccl_for_engine", "version_text"]

LIBRARY = "libnccl.so.2"
OLDEST = 21800
"""The version code of the oldest one that serves: 2.18."""

_FOLDER, _HOME = "HOROVOD_NCCL_LIB", "HOROVOD_NCCL_HOME"
_WHEELS = "nvidia-nccl-cu"


class NcclError(Exception):
    """None can be used; the argument is a sentence without its full stop."""


@dataclass(frozen=True)
class Nccl:
    """``version``: its code, 22703 for 2.27.3. ``file``: what was loaded."""

    version: int
    file: str

    def __str__(self) -> str:
        return f"NCCL {version_text(self.version)} from {self.file}"


def version_text(code: int) -> str:
    """ "2.27.3" of 22703; codes before 2.9 have a digit less."""
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def find_nccl(environ: Mapping[str, str] = os.environ) -> Nccl:
    """The library that this process uses, or would use. Loads it, for ever.

    The first of these that there is: the one that is loaded; ``HOROVOD_NCCL_LIB`` (a folder or file) and
    ``HOROVOD_NCCL_HOME``, which then decide; that of a wheel ``nvidia-nccl-cu*``, as PyTorch brings it; the
    system's.

    Raises:
        NcclError: none is there, it cannot be loaded, or it is older than 2.18.
    """
    failed = []
    for place in _places(environ):
        try:
            library = ctypes.CDLL(place)
        except OSError as error:
            if place != LIBRARY or "No such file" not in str(error):
                failed.append(f"{place} cannot be loaded: {error}")
            continue
        found = Nccl(_version(library, place), _loaded() or place)
        if found.version < OLDEST:
            raise NcclError(f"{found} is too old: {version_text(OLDEST)} or newer is needed")
        return found
    raise NcclError("; ".join(failed) or "no NCCL was found: pip install nvidia-nccl-cu12")


def nccl_for_engine(environ: Mapping[str, str] = os.environ) -> str:
    """The file that the engine loads where the process has no NCCL by then; empty: that of the system. Loads
    nothing."""
    given = [(name, environ[name]) for name in (_FOLDER, _HOME) if environ.get(name)]
    for name, text in given:
        return next(_below(name, text), os.path.join(text, LIBRARY))
    if _loaded():
        return ""
    return next(_of_wheels(), "")


def _places(environ: Mapping[str, str]) -> Iterator[str]:
    if loaded := _loaded():
        yield loaded
        return
    given = [(name, environ[name]) for name in (_FOLDER, _HOME) if environ.get(name)]
    if given:
        files = [file for name, text in given for file in _below(name, text)]
        if not files:
            raise NcclError(f"{' and '.join(f'{name}={text}' for name, text in given)} has no {LIBRARY}")
        yield from files
        return
    yield from _of_wheels()
    yield LIBRARY


def _below(name: str, text: str) -> Iterator[str]:
    path = Path(text)
    folders = [path] if name == _FOLDER else [path / "lib", path / "lib64"]
    if name == _FOLDER and path.is_file():
        yield text
    for folder in folders:
        if (folder / LIBRARY).exists():
            yield str(folder / LIBRARY)


def _of_wheels() -> Iterator[str]:
    wheels = [each for each in importlib.metadata.distributions() if _name(each).startswith(_WHEELS)]
    for wheel in sorted(wheels, key=_name, reverse=True):  # cu13 before cu12
        for file in wheel.files or ():
            if file.name == LIBRARY:
                yield str(wheel.locate_file(file))


def _name(distribution: importlib.metadata.Distribution) -> str:
    # One whose metadata is broken has no name.
    return str(distribution.metadata["Name"] or "").lower().replace("_", "-")


def _loaded() -> str:
    """The file of the one that is in this process; empty if there is none."""
    for line in lines("/proc/self/maps"):
        path = line[line.find("/") :] if "/" in line else ""
        if os.path.basename(path).startswith("libnccl.so"):
            return path
    return ""


def _version(library: ctypes.CDLL, place: str) -> int:
    code = ctypes.c_int(0)
    try:
        status = library.ncclGetVersion(ctypes.byref(code))
    except AttributeError:
        raise NcclError(f"{place} is not NCCL: it has no ncclGetVersion") from None
    if status != 0:
        raise NcclError(f"{place} does not say its version: ncclGetVersion gives {status}")
    return code.value
