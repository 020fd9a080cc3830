"""Results as a table, one line per size, with the columns that users of nccl-tests know."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.bench.result import Result

__all__ = ["Table"]


class Table:
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
