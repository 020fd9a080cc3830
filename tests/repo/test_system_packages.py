"""What `make test` does about system packages that are missing: before it compiles anything, in one line.

The real Makefile and script run in a folder where nothing was built, with a path that leads to few programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED_FILES = ["Makefile", "requirements/system.sh", "requirements/build.txt"]
ORDINARY = ["sh", "ls", "nproc", "sort", "uname", "expr", "grep"]
LIMIT_S = 30.0


def program(folder: Path, name: str, *lines: str) -> None:
    file = folder / name
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what `make test` begins with. ``programs`` has no compiler; who calls Python is noted."""
    for name in NEEDED_FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ORDINARY:
        (programs / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    program(programs, "python3", f'echo "$*" >>{tmp_path}/python-was-called', "exit 1")
    return tmp_path


def make_test(sources: Path, user: int, *options: str) -> tuple[int, list[str]]:
    """Status and lines of ``make test``, as the user with that number."""
    make = shutil.which("make")
    assert make is not None
    program(sources / "programs", "id", f"echo {user}")
    variables: Mapping[str, str] = {"PATH": str(sources / "programs"), "HOME": str(sources)}
    done = subprocess.run(
        [make, *options, "test"],
        cwd=sources,
        env={**variables, "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("--jobs=4",)], ids=["one by one", "four at once"])
def test_an_ordinary_user_is_told_the_line_that_installs_them_before_anything_is_compiled(
    sources: Path, options: tuple[str, ...]
) -> None:
    status, lines = make_test(sources, 1000, *options)
    assert status != 0
    told = [line for line in lines if "apt-get" in line]
    assert len(told) == 1, lines
    words = told[0].partition("On Debian or Ubuntu: sudo apt-get install ")[2].split()
    assert "g++" in words
    assert [line for line in lines if line != told[0] and not line.startswith("make")] == []
    assert sorted(os.listdir(sources)) == ["Makefile", "programs", "requirements"]


def test_root_installs_them_before_anything_is_compiled(sources: Path) -> None:
    calls = sources / "installed"
    program(sources / "programs", "apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{calls}')
    status, lines = make_test(sources, 0)
    assert status != 0, "nothing can be compiled here: the Python of this test only notes that it was called"
    update, install = calls.read_text().splitlines()
    assert update.split() == ["-qq", "update"]
    assert install.startswith("noninteractive -qq install -y --no-install-recommends ")
    words = install.partition("--no-install-recommends ")[2].split()
    assert "g++" in words
    assert lines[0] == f"installing the system packages {' '.join(words)}"
    assert (sources / "python-was-called").exists(), f"the rest begins then: {lines}"


def test_the_packages_that_are_named_exist_here() -> None:
    """A name that Debian does not have would end the installation of all others."""
    if shutil.which("apt-cache") is None or not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        pytest.skip("this system has no list of Debian's packages")
    script = (ROOT / "requirements" / "system.sh").read_text()
    words = sorted(set(" ".join(re.findall(r'"\$(?:needed|useful) ([^"$]+)"', script)).split()))
    assert {"g++", "libgtest-dev", "clang", "fish"} <= set(words)
    shown = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert sorted(re.findall(r"^Package: (.*)$", shown.stdout, re.MULTILINE)) == words
