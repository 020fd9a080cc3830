"""Options go from the command line to the workers on a short way, and by types."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.repo.imports import PACKAGE, files, imported
from tests.repo.walk import FORMS, WALK

ROOT = PACKAGE.parents[1]
LAUNCHING = ("launch", "runner")
BY_NAME = {
    "launch/calls/plain.py": "an exception of Python's own",
    "launch/external/messages.py": "variables of the program that has started a rank",
    "launch/contracts/registry.py": "the class of a row",
}
"""Modules that look up an attribute whose name is not in their text, and of what."""


def test_a_job_goes_the_walk() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.repo.walk"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, tuple(done.stdout.split())) == (0, WALK), done.stderr
    assert set(FORMS) <= set(WALK)


def of_launching() -> Iterator[Path]:
    for file in files():
        if file.relative_to(PACKAGE).parts[0] in LAUNCHING:
            yield file


def by_name(file: Path) -> Iterator[int]:
    """Lines with ``getattr(thing, name)`` or ``setattr(thing, name, value)``."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Name("getattr" | "setattr"), args=[_, name, *_]) if not isinstance(
                name, ast.Constant
            ):
                yield node.lineno


def test_options_are_not_looked_up_by_name() -> None:
    found = {file.relative_to(PACKAGE).as_posix() for file in of_launching() if any(by_name(file))}
    assert found == set(BY_NAME)


def test_no_module_of_the_launcher_but_that_of_help_knows_a_namespace() -> None:
    found = {file.name for file in of_launching() if "argparse" in imported(file)}
    assert found == {"command_line.py"}
    assert not [file for file in of_launching() if "argparse.Namespace" in file.read_text()]
