"""What happens in an elastic job, for people and for programs.

Each event is a line of JSON in a file: ``{"at": UNIX seconds, "event": name, "text": sentence, ...}``. It is
written as it happens, so that it is there after any end.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import BinaryIO

from horovod.errors import LaunchError
from horovod.launch.elastic.actions import Log
from horovod.launch.output.console import Console

__all__ = ["Record"]

_ASKED_FOR = frozenset({"ended", "starting", "newcomer", "notified", "ending"})
"""Events that are told only to those who want to know more."""


class Record:
    """
    Args:
        console: where sentences go.
        path: of the file; None: there is none. It is written anew.

    Raises:
        LaunchError: the file cannot be written.
    """

    def __init__(self, console: Console, path: Path | None) -> None:
        self._console = console
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("wb", buffering=0)
            except OSError as error:
                raise LaunchError(
                    f"The events cannot be kept in {path}: {error.strerror or error}."
                ) from error

    def add(self, log: Log) -> None:
        tell = self._console.narrate if log.event in _ASKED_FOR else self._console.tell
        tell(log.text)
        if self._file is None:
            return
        line = json.dumps({"at": round(time.time(), 4), "event": log.event, "text": log.text, **log.fields})
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            self._console.tell(f"the file of events ends here: {error.strerror or error}")
            self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
