"""Tries a wheel on another Debian, or on another machine: two ranks train there with NumPy.

    python -m tools.release.trial_tree dist trixie arm64

Programs of another machine run under ``qemu-aarch64`` (Debian: qemu-user). Needs no root and no container:
programs are started with the C library of their folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tools.release.commands import python as python_command
from tools.release.debian import Tree, tree
from tools.release.distributions import WORK
from tools.release.targets import GLIBC, MACHINES, Machine
from tools.release.trial_here import digits

__all__ = ["debian_with_python", "emulator", "machine_of", "main", "program"]

_PLACE = WORK / "trees"
_PYTHONS = {"bookworm": "python3.11", "trixie": "python3.13"}
_TRAINING = Path(__file__).with_name("numpy_training.py")
_WITH_WHEEL = (
    "import runpy, sys; sys.path.insert(0, {site!r}); runpy.run_path({script!r}, run_name='__main__')"
)


def main(words: list[str]) -> int:
    """Try the wheel of one suite and architecture; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path, help="the folder with the wheels")
    parser.add_argument("suite", choices=sorted(_PYTHONS))
    parser.add_argument("architecture", choices=sorted(machine.debian for machine in MACHINES))
    args = parser.parse_args(words)
    python = _PYTHONS[args.suite]
    debian = debian_with_python(args.suite, args.architecture)
    machine = machine_of(args.architecture)
    site = _site(args.dist.resolve(), machine, python, _PLACE / f"site-{args.suite}-{args.architecture}")
    run = [*program(debian, machine), debian.root / "usr" / "bin" / python]
    # The launcher starts Python by its file, which for another system or machine takes more: so it is ours.
    ranks = [*run, "-c", _WITH_WHEEL.format(site=str(site), script=str(_TRAINING)), digits()]
    job: list[str | Path] = [*python_command("horovod.runner.launch", "-np", "2"), *ranks]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(job, check=True, env=environment, timeout=600)
    return 0


def debian_with_python(suite: str, architecture: str) -> Tree:
    """A Debian with the libraries that Python and NumPy need."""
    return tree(_PLACE, suite, architecture, [_PYTHONS[suite], "libstdc++6", "zlib1g"])


def machine_of(architecture: str) -> Machine:
    """The machine that Debian calls ``architecture``."""
    (machine,) = [machine for machine in MACHINES if machine.debian == architecture]
    return machine


def program(debian: Tree, machine: Machine) -> list[str | Path]:
    """What comes before a program of ``debian`` on a command line of this machine."""
    if machine.name != platform.machine():
        return emulator(debian, machine)
    libraries = debian.root / "usr" / "lib" / f"{machine.name}-linux-gnu"
    (loader,) = (debian.root / "usr").glob("lib*/ld-linux-*.so.2")
    return [loader, "--library-path", libraries]


def emulator(debian: Tree, machine: Machine) -> list[str | Path]:
    """What runs programs of another machine here.

    Raises:
        RuntimeError: it is not installed.
    """
    found = shutil.which(f"qemu-{machine.name}") or shutil.which(f"qemu-{machine.name}-static")
    if found is None:
        raise RuntimeError(f"qemu-{machine.name} is missing (Debian and Ubuntu: apt-get install qemu-user).")
    return [found, "-L", debian.root]


def _site(dist: Path, machine: Machine, python: str, into: Path) -> Path:
    """A folder with what pip installs there: the newest wheels that this machine and Python take."""
    shutil.rmtree(into, ignore_errors=True)
    platforms = [f"--platform=manylinux_2_{minor}_{machine.name}" for minor in range(17, GLIBC[1] + 1)]
    platforms.append(f"--platform=manylinux2014_{machine.name}")
    choice = [*platforms, "--only-binary=:all:", f"--python-version={python.removeprefix('python')}"]
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--target", into, *choice]
    # Of this package no other place but `dist` can have a wheel.
    subprocess.run([*command, "numpy", "cloudpickle", "pyyaml"], check=True)
    subprocess.run([*command, "--no-index", "--no-deps", "--find-links", dist, "farandole"], check=True)
    return into


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
