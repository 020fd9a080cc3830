"""Sizes in bytes, as people write them: ``4``, ``64K``, ``1.5M``, ``2GiB``. Units are powers of 1024."""

from __future__ import annotations

import re

__all__ = ["parse_size", "series", "size_name"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes that ``text`` means.

    Raises:
        ValueError: not a size, or not a whole number of bytes, at least 1.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with K, M or G, for example 64K")
    value = float(found[1]) * _UNITS[found[2].upper()]
    if value < 1 or value != int(value):
        raise ValueError(f"{text!r} is no size: it must be a whole number of bytes, at least 1")
    return int(value)


def series(smallest_bytes: int, largest_bytes: int, factor: float) -> tuple[int, ...]:
    """Sizes from the smallest to the largest, each ``factor`` times the one before.

    Raises:
        ValueError: the smallest is larger than the largest, or the factor is not above 1.
    """
    if smallest_bytes > largest_bytes:
        raise ValueError(f"{smallest_bytes} bytes to {largest_bytes} bytes: the smallest must not be larger")
    if not factor > 1:
        raise ValueError(f"{factor:g} must be above 1, as each size is that many times the one before")
    sizes: list[int] = []
    size = float(smallest_bytes)
    while size <= largest_bytes:
        if not sizes or int(size) > sizes[-1]:
            sizes.append(int(size))
        size *= factor
    return tuple(sizes)


def size_name(size_bytes: int) -> str:
    """``64 KiB``, ``1.5 MiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"
