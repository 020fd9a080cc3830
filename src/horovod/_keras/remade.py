"""Return whether an optimizer that was made again from its configuration is like the original."""

from __future__ import annotations

from typing import Any

__all__ = ["has_lost"]

_PLAIN = (bool, int, float, str, type(None))


def has_lost(optimizer: Any, made: Any) -> bool:
    """Return whether ``made`` lacks a plain attribute of ``optimizer`` or has another value: a class
    of the user may keep what its ``get_config()`` leaves out."""
    there = vars(made)
    return any(
        isinstance(value, _PLAIN) and value == value and (name not in there or there[name] != value)
        for name, value in vars(optimizer).items()
    )
