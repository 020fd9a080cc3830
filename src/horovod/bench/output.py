"""Output for people: results as a table, one line per size, and progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from horovod.bench.result import Result

__all__ = ["ProgressLine", "ResultTable"]

_EVERY_S = 2.0
_ERASE = "\x1b[K"


class ResultTable:
    """Lines of one width.

    Args:
        peers: libraries to compare with. Each has two columns: its time, and that time as a multiple of ours.
    """

    def __init__(self, peers: Sequence[str] = ()) -> None:
        self._peers = tuple(peers)
        self._columns: list[tuple[str, str, int]] = [
            ("size", "B", 11),
            ("count", "", 11),
            ("type", "", 8),
            ("op", "", 7),
            ("time", "us", 10),
            ("p99", "us", 10),
            ("algbw", "GB/s", 7),
            ("busbw", "GB/s", 7),
            ("limit", "%", 5),
            ("path", "", 12),
        ]
        for peer in self._peers:
            self._columns += [(peer, "us", 10), ("ratio", "", 7)]

    def head(self) -> str:
        """Two lines: names and units."""
        names, units = ([column[i] for column in self._columns] for i in (0, 1))
        lines = [self._line([str(cell) for cell in cells]) for cells in (names, units)]
        return "\n".join(f"#{line[1:]}".rstrip() for line in lines)

    def row(self, result: Result) -> str:
        share = result.share_of_limit()
        cells = [
            str(result.size_bytes),
            str(result.count),
            result.dtype if result.size_bytes else "-",
            result.op or "-",
            _figure(result.median_s() * 1e6),
            _figure(result.p99_s() * 1e6),
            f"{result.algbw_gb_s():.2f}" if result.size_bytes else "-",
            f"{result.busbw_gb_s():.2f}" if result.size_bytes else "-",
            "-" if share is None else f"{share * 100:.0f}",
            result.path or "-",
        ]
        for peer in self._peers:
            cells += [_figure(result.median_s(peer) * 1e6), f"{result.ratio(peer):.2f}"]
        return self._line(cells)

    def _line(self, cells: Sequence[str]) -> str:
        return " ".join(cell.rjust(width) for cell, (_, _, width) in zip(cells, self._columns, strict=True))


def _figure(value: float) -> str:
    """With three digits at least, and none that mean nothing."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


class ProgressLine:
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
