"""Runs programs, those of the environment of this Python first: CMake, Ninja, auditwheel, twine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["output", "python", "run"]


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a program, which writes to the terminal.

    Raises:
        subprocess.CalledProcessError: it failed, and has said why.
    """
    subprocess.run([str(word) for word in command], cwd=cwd, env=_environment(), check=True)


def output(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program writes to its standard output. Fails as :func:`run` does."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=_environment(), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def python(*words: str | Path) -> list[str | Path]:
    """The command that runs a module with this Python, as in ``python("pip", "wheel")``."""
    return [sys.executable, "-m", *words]


def _environment() -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return os.environ | {"PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])}
