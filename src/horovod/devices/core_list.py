"""Lists of cores as Linux writes them: ``0-31,64-95``. Source: kernel documentation, cputopology."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["as_text", "read_list"]


def read_list(text: str) -> tuple[int, ...]:
    """The numbers in a list, ascending; none if it is no list."""
    found: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def as_text(numbers: Iterable[int]) -> str:
    """The list with these numbers."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
