"""What must hold of a wheel before anybody gets it. Each rule tells what is wrong in a sentence.

python -m tools.release.audit FILES
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tools.release.binary import Binary
from tools.release.targets import GLIBC

__all__ = ["LIMIT_BYTES", "binaries_in", "problems", "problems_of_binary"]

LIMIT_BYTES = 3_000_000
C_LIBRARY = re.compile(r"^(libc|libm|libpthread|libdl|librt|ld-linux[-\w]*)\.so\.\d+$")
FOREIGN_SYMBOL = re.compile(
    r"^(_ZN[KVR]*(2at|3c10|5torch|10tensorflow|9farandole|3xla|5mxnet|3tsl)|TF_|TFE_|MPI_|ompi_|nccl|cuda|cu[A-Z]|hip|Xla)"
)
CXX_RUNTIME_SYMBOL = re.compile(
    r"^(_ZSt|_ZNSt|_ZNKSt|_ZTVN10__cxxabiv|__cxa_throw|__gxx_personality|_Unwind_)"
)
SHOWN = {
    "_core": ["PyInit__core"],
    "_tensorflow": ["farandole_tf_enter", "farandole_tf_leave", "farandole_tf_problem"],
}
_NAME = re.compile(r"farandole-[\w.]+-(?P<python>cp\d+)-(?P<abi>\w+)-(?P<platform>\w+)\.whl")


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel of the package. An empty list: nothing."""
    return list(_problems(wheel))


def _problems(wheel: Path) -> Iterator[str]:
    named = _NAME.fullmatch(wheel.name)
    if named is None:
        yield f"{wheel.name} is no name of a wheel with native modules"
        return
    if (size := wheel.stat().st_size) > LIMIT_BYTES:
        yield f"{wheel.name} takes {size} bytes; {LIMIT_BYTES} are the limit"
    tag = "-".join(named.groups())
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        yield from _problems_of_tags(archive, tag)
        found = {binary.file.name.split(".")[0]: binary for binary in binaries_in(archive, Path(folder))}
        if sorted(found) != sorted(SHOWN):
            yield f"the native modules are {sorted(found)}, and should be {sorted(SHOWN)}"
        for binary in found.values():
            yield from problems_of_binary(binary, named["platform"])
        if (core := found.get("_core")) is not None and not _loadable(core.file.name, named["abi"]):
            yield f"{core.file.name} is not the name that a Python of {tag} looks for"


def binaries_in(archive: zipfile.ZipFile, folder: Path) -> list[Binary]:
    """The shared objects of a wheel, which is unpacked into ``folder``."""
    archive.extractall(folder)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [Binary(file) for file in files if file.read_bytes()[:4] == b"\x7fELF"]


def problems_of_binary(binary: Binary, platform: str) -> Iterator[str]:
    """What is wrong with one shared object of a wheel for ``platform``: ``manylinux_2_28_x86_64``."""
    name = binary.file.name
    if not platform.endswith(f"_{binary.machine}"):
        yield f"{name} is for {binary.machine}, and the wheel for {platform}"
    if others := [library for library in binary.needed if not C_LIBRARY.match(library)]:
        yield f"{name} needs {others}; only the C library may be needed"
    if binary.search_paths:
        yield f"{name} looks for libraries in {binary.search_paths}, folders of the machine that built it"
    if foreign := [symbol for symbol in binary.wanted if FOREIGN_SYMBOL.match(symbol)]:
        yield f"{name} wants {foreign} of a framework: it would serve one version of that only"
    if runtime := [symbol for symbol in binary.wanted if CXX_RUNTIME_SYMBOL.match(symbol)]:
        yield f"{name} wants {runtime} of the C++ library, which must be inside"
    if (expected := SHOWN.get(name.split(".")[0])) is not None and binary.shown != expected:
        yield f"{name} shows {sorted(set(binary.shown) ^ set(expected))} more or less than its entry points"
    if platform.startswith("manylinux") and binary.glibc > GLIBC:
        yield f"{name} wants {binary.wanted_since(GLIBC)}, newer than what {platform} promises"


def _problems_of_tags(archive: zipfile.ZipFile, tag: str) -> Iterator[str]:
    (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
    lines = archive.read(about).decode().splitlines()
    tags = [line.partition(": ")[2] for line in lines if line.startswith("Tag:")]
    if tags != [tag]:
        yield f"the name of the wheel says {tag}, and its file WHEEL says {tags}"
    if "Root-Is-Purelib: false" not in lines:
        yield "the file WHEEL says that the wheel holds no native modules"


def _loadable(name: str, abi: str) -> bool:
    return f".{abi}." in name if abi == "abi3" else f".cpython-{abi.removeprefix('cp')}-" in name


def main(files: list[str]) -> int:
    """Say for each wheel what is wrong, or how it is. Returns the exit status."""
    status = 0
    for file in map(Path, files):
        wrong = problems(file)
        status |= bool(wrong)
        print(f"{file.name}: {file.stat().st_size} bytes" + "".join(f"\n  WRONG: {text}" for text in wrong))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
