"""Other programs: where they are, and what they answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Answer", "ask", "find_program"]


class Answer(NamedTuple):
    """Output of a program. ``broken``: why it could not be run or did not end in time; then its status is 127
    and it has said nothing.
    """

    status: int
    stdout: str
    stderr: str
    broken: str = ""


def ask(words: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Run a program without input; ``environ`` is by default that of this process."""
    try:
        done = subprocess.run(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(127, "", "", str(error))
    return Answer(done.returncode, done.stdout, done.stderr)


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The absolute path of a program on the PATH of `environ`."""
    import shutil  # takes longer to import than the rest of this module

    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    return None if found is None else os.path.abspath(found)
