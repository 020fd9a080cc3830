"""Results as a picture: time and bus bandwidth over the size. Nothing else needs matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horovod.bench.result import LIMIT, Result

__all__ = ["draw", "missing", "over_size"]

_MICROSECONDS = 1e6


def missing() -> str:
    """Name what to install before anything can be drawn; "" if nothing is missing."""
    return "" if importlib.util.find_spec("matplotlib") else "matplotlib"


def over_size(axes: Any, points: Sequence[tuple[float, float]], name: str, *, limit: bool) -> None:
    """A library's line. That of the limit looks different, as the limit is no library."""
    style: dict[str, Any] = {"linestyle": "--", "color": "gray"} if limit else {"marker": "o"}
    axes.plot(*zip(*points, strict=True), label=name, **style)


def draw(results: Sequence[Result], file: Path, title: str) -> None:
    """Write a picture with a row for each operation.

    Raises:
        OSError: the file cannot be written.
        ValueError: its ending names no format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sized = [result for result in results if result.size_bytes]
    operations = list(dict.fromkeys(result.operation for result in sized))
    if not operations:
        raise ValueError("nothing to draw: a barrier has no size")
    figure, grid = plt.subplots(
        len(operations), 2, figsize=(11, 4 * len(operations)), layout="constrained", squeeze=False
    )
    figure.suptitle(title)
    for operation, (times, bandwidths) in zip(operations, grid, strict=True):
        mine = [result for result in sized if result.operation == operation]
        for library in mine[0].timings:
            points = [(r.size_bytes, r.median_s(library) * _MICROSECONDS) for r in mine]
            over_size(times, points, library, limit=library == LIMIT)
            if library != LIMIT:
                points = [(r.size_bytes, r.busbw_gb_s(library)) for r in mine]
                over_size(bandwidths, points, library, limit=False)
        times.set(xscale="log", yscale="log", xlabel="bytes", ylabel="µs (median)", title=operation)
        bandwidths.set(xscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", title=operation)
        for axes in (times, bandwidths):
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
    figure.savefig(file, dpi=120)
    plt.close(figure)
