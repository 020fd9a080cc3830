"""Wording of numbers and names in messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 slot``, ``2 slots``; ``plural`` where that is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
