"""Reports of progress on standard error."""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

_EVERY_S = 2.0
_ERASE = "\x1b[K"


class Progress:
    """Says what is measured now.

    Args:
        mode: "line": one line that changes; "lines": a line when it has been a while; "none"; "auto": whether
            ``stream`` is a terminal.
        steps: measurements in all.
    """

    def __init__(self, mode: str, steps: int, stream: TextIO = sys.stderr) -> None:
        self._mode = ("line" if stream.isatty() else "lines") if mode == "auto" else mode
        self._steps = steps
        self._done = 0
        self._stream = stream
        self._said_at = time.monotonic()

    def step(self, text: str) -> None:
        """The next measurement begins."""
        share = f"{100 * self._done // max(1, self._steps)} %"
        self._done += 1
        if self._mode == "line":
            # The carriage return comes last: a launcher forwards a line when it ends.
            self._say(f"{_ERASE}{share}: {text}\r")
        elif self._mode == "lines" and time.monotonic() - self._said_at >= _EVERY_S:
            self._said_at = time.monotonic()
            self._say(f"{share}: {text}\n")

    def clear(self) -> None:
        """Make room for other output."""
        if self._mode == "line":
            self._say(f"{_ERASE}\r")

    def _say(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
