"""Runs C++ tests of the engine that the wheels of one machine hold, for another machine under its emulator.
Only the tests are compiled: the engine is what the build of the wheels left.

python -m tools.release.trial_tests aarch64 'test_(kernels|shm_.*)'
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from pathlib import Path

from tools.release.commands import run
from tools.release.compiler import cross_options
from tools.release.distributions import WORK
from tools.release.targets import MACHINES
from tools.release.trial_tree import debian_with_python, emulator

__all__ = ["main"]

_GOOGLETEST = Path("/usr/src/googletest")
_NOT_EMULATED = "AForkedChild"
"""The emulator's children keep mappings that are not for children: qemu 7.2 passes over ``MADV_DONTFORK``."""


def main(words: list[str]) -> int:
    """Compile and run; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machine", choices=[machine.name for machine in MACHINES])
    parser.add_argument("tests", help="a regular expression: files of tests/core, without the ending")
    args = parser.parse_args(words)
    (machine,) = [machine for machine in MACHINES if machine.name == args.machine]
    source, folder = WORK / "sources", WORK / machine.name
    options = cross_options(folder, machine)
    googletest = _googletest(WORK / f"googletest-{machine.name}", options)
    names = sorted(file.stem for file in (source / "tests" / "core").rglob("test_*.cpp"))
    chosen = [name for name in names if re.fullmatch(args.tests, name)]
    if not chosen:
        raise SystemExit(
            f"No tests are named {args.tests} in {source}. The build of the wheels puts them there."
        )
    if machine.name != platform.machine():
        emulated = emulator(debian_with_python("trixie", machine.debian), machine)
        options.append(f"-DCMAKE_CROSSCOMPILING_EMULATOR={';'.join(map(str, emulated))}")
    options += [f"-DGTest_ROOT={googletest}", "-DFARANDOLE_BUILD_TESTS=ON"]
    run("cmake", "-S", source, "-B", folder, "--log-level=WARNING", *options)
    run("cmake", "--build", folder, "--target", *chosen)
    pattern = f"^({'|'.join(chosen)})\\."
    run(
        "ctest",
        "--test-dir",
        folder,
        "-R",
        pattern,
        *(["-E", _NOT_EMULATED] if machine.name != platform.machine() else []),
        "--output-on-failure",
        "--no-tests=error",
        "--timeout",
        "900",
    )
    return 0


def _googletest(folder: Path, options: list[str]) -> Path:
    """GoogleTest for the machine that ``options`` compile for."""
    prefix = folder / "installed"
    if not prefix.exists():
        options = [*options, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DBUILD_GMOCK=OFF"]
        run("cmake", "-S", _GOOGLETEST, "-B", folder, *options)
        run("cmake", "--build", folder, "--target", "install")
    return prefix


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
