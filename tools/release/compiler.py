"""Compiles for an old C library, and for other machines, with the clang that the package ``ziglang`` brings.

Its own C++ library is linked in, where the version scripts of the modules hide it like the one of GCC.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tools.release.commands import run
from tools.release.targets import Abi, Machine

__all__ = ["cross_options", "native_modules"]


def native_modules(source: Path, folder: Path, machine: Machine, abi: Abi, include: Path) -> Path:
    """Compile the native modules.

    Args:
        source: the root of the sources.
        folder: keeps what is compiled; the engine in it serves every ``abi`` of that machine.
        include: headers of a Python that ``abi`` serves.

    Returns:
        A folder with the modules at the places they have in a wheel.

    Raises:
        subprocess.CalledProcessError: CMake or the compiler failed, and has said why.
    """
    options = [
        *cross_options(folder, machine),
        f"-DFARANDOLE_PYTHON_INCLUDE={include}",
        f"-DFARANDOLE_PYTHON_ABI={abi.cmake_name}",
        "-DFARANDOLE_BUILD_PYTHON=ON",
        "-DFARANDOLE_BUILD_TESTS=OFF",
    ]
    run("cmake", "-S", source, "-B", folder, "--log-level=WARNING", *options)
    run("cmake", "--build", folder, "--target", "_core", "--target", "_tensorflow")
    stage = folder / f"stage-{abi.python}"
    run("cmake", "--install", folder, "--component", "python", "--prefix", stage)
    return stage


def cross_options(folder: Path, machine: Machine) -> list[str]:
    """Options of CMake that make it compile for ``machine``. ``folder`` gets the programs that they name."""
    tools = folder / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    # A program of one word each, as CMake wants them.
    compiler = _program(tools / "c++", "c++", "-target", machine.compiler_target)
    return [
        "-GNinja",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        # Also for what CMake tries: the compiler makes its C++ library anew for every level that it meets.
        "-DCMAKE_CXX_FLAGS=-O3",
        "-DCMAKE_SYSTEM_NAME=Linux",
        f"-DCMAKE_SYSTEM_PROCESSOR={machine.name}",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DCMAKE_AR={_program(tools / 'ar', 'ar')}",
        f"-DCMAKE_RANLIB={_program(tools / 'ranlib', 'ranlib')}",
        "-DCMAKE_MODULE_LINKER_FLAGS=-s",  # the strip of this machine knows this machine's files only
        "-DCMAKE_SKIP_RPATH=ON",  # nothing is looked for in folders of this machine
        "-DCCACHE=OFF",  # the compiler has a cache of its own
        "-DFARANDOLE_WERROR=ON",
    ]


def _program(file: Path, *words: str) -> Path:
    command = shlex.join([sys.executable, "-m", "ziglang", *words])
    text = f'#!/bin/sh\nexec {command} "$@"\n'
    if not file.exists() or file.read_text() != text:  # a new one would have everything compiled again
        file.write_text(text)
        file.chmod(0o755)
    return file
