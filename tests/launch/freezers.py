"""Control groups that tests freeze."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["FREEZERS", "Freezer", "Group"]

_LIMIT_S = 20.0


@dataclass(frozen=True)
class Group:
    """A control group without members at first."""

    folder: Path
    file: str
    words: tuple[str, str]

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def freeze(self) -> None:
        (self.folder / self.file).write_text(self.words[0])

    def thaw(self) -> None:
        (self.folder / self.file).write_text(self.words[1])


@dataclass(frozen=True)
class Freezer:
    """A place where groups are made. ``file`` of a group takes the words that freeze and thaw."""

    top: Path
    file: str
    words: tuple[str, str]

    @contextmanager
    def group(self) -> Iterator[Group]:
        """A new one; skips where none can be made. It is thawed at the end."""
        folder = self.top / f"farandole-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no control group can be made: {error}")
        made = Group(folder, self.file, self.words)
        try:
            if not (folder / self.file).exists():
                pytest.skip(f"no control groups in {self.top} have {self.file}")
            try:
                yield made
            finally:
                made.thaw()
        finally:
            deadline = time.monotonic() + _LIMIT_S
            while folder.exists() and time.monotonic() < deadline:
                with suppress(OSError):
                    folder.rmdir()  # nothing tells that the last process is out of it
                time.sleep(0.01)

    def __str__(self) -> str:
        return f"{self.top.name}-{self.file}"


FREEZERS = [
    Freezer(Path("/sys/fs/cgroup/freezer"), "freezer.state", ("FROZEN", "THAWED")),
    Freezer(Path("/sys/fs/cgroup/unified"), "cgroup.freeze", ("1", "0")),
    Freezer(Path("/sys/fs/cgroup"), "cgroup.freeze", ("1", "0")),
]
"""Where control groups are, as a rule: of version 1, of version 2 beside it, and of version 2 alone."""
