"""Copying a folder of this machine to a store, each file when it has changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

__all__ = ["Sync", "TemporaryFolder"]


class Sync:
    """Copies what is new or has changed in a folder since its last call; nothing is taken away.

    Args:
        put: copies one file to the store.
        target: the folder in the store.
    """

    def __init__(self, put: Callable[[str, str], None], target: str) -> None:
        self._put = put
        self._target = target
        self._copied: dict[
            str, tuple[int, int]
        ] = {}  # path in the folder -> time and size of what was copied

    def __call__(self, folder: str) -> None:
        for parent, _, names in os.walk(folder, followlinks=True):
            for name in sorted(names):
                file = Path(parent) / name
                inner = file.relative_to(folder).as_posix()
                state = file.stat()
                seen = (state.st_mtime_ns, state.st_size)
                if self._copied.get(inner) != seen:
                    self._put(str(file), f"{self._target}/{inner}")
                    self._copied[inner] = seen


class TemporaryFolder:
    """Makes temporary folders for one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __call__(self) -> AbstractContextManager[str]:
        return tempfile.TemporaryDirectory(prefix=f"{self._run_id}-".replace(os.sep, "-"))
