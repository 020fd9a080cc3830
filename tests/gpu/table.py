"""What was seen on a device: rows, and the table of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["FAILED", "MET", "MISSED", "NOT_FOUND", "PASSED", "Row", "as_json", "failed", "judged", "rendered"]

PASSED: Final = "pass"
FAILED: Final = "fail"
NOT_FOUND: Final = "not found"
"""Something that the row needs is not on this machine; the figure says what."""
MET: Final = "met"
MISSED: Final = "missed"
"""Of a goal for speed, which fails nothing: another program may have been at work."""

_HEADS: Final = ("row", "what", "figure", "goal", "result")
_MOST_SHOWN: Final = 4000


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        figure: what was seen, with its unit; ``value`` is the number in it, if there is one.
        goal: empty if there is none.
        result: one of the words of this module; empty: a figure that nothing is asked of.
        detail: what a failed program has said.
    """

    name: str
    what: str
    figure: str
    goal: str = ""
    result: str = ""
    value: float | None = None
    detail: str = ""


def judged(value: float, most: float | None = None, least: float | None = None) -> str:
    """Whether a figure meets its goal."""
    fine = (most is None or value <= most) and (least is None or value >= least)
    return MET if fine else MISSED


def failed(rows: Sequence[Row]) -> bool:
    """Whether something is wrong. A goal for speed that is missed is not."""
    return any(row.result == FAILED for row in rows)


def rendered(rows: Sequence[Row]) -> str:
    """The table, and below it what failed programs have said."""
    cells = [_HEADS, *((row.name, row.what, row.figure, row.goal, row.result) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADS))]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    for row in rows:
        if row.detail:
            lines += ["", f"--- {row.name}: {row.what}", row.detail[-_MOST_SHOWN:]]
    return "\n".join(lines) + "\n"


def as_json(machine: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """``{"machine": ..., "rows": [...]}``."""
    everything = {"machine": dict(machine), "rows": [dataclasses.asdict(row) for row in rows]}
    return json.dumps(everything, indent=1) + "\n"
