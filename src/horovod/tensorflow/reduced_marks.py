"""Marks on gradients that have been reduced already. A tape that reduces marks what it returns; an optimizer
that reduces as well leaves marked gradients alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["is_marked", "mark"]

# By identity, as tensors compare element by element; weak, as a mark must not keep a gradient alive.
_marked: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def mark(tensors: Iterable[Any]) -> None:
    """Mark ``tensors`` as reduced; ``None`` is passed over."""
    for tensor in tensors:
        if tensor is not None:
            _marked[id(tensor)] = tensor


def is_marked(tensor: Any) -> bool:
    """Return whether ``tensor`` was given to :func:`mark`. A tensor that is computed from it has no mark."""
    return tensor is not None and _marked.get(id(tensor)) is tensor
