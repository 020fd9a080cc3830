"""Which gradients have been reduced already: a tape that reduces marks what it returns, so that an optimizer
which reduces as well leaves those alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["is_marked", "mark"]

# By identity, as tensors compare element by element; weak, as a mark must not keep a gradient alive.
_marked: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def mark(tensors: Iterable[Any]) -> None:
    """Remember that ``tensors`` (``None`` is passed over) are final: nothing is to reduce them again."""
    for tensor in tensors:
        if tensor is not None:
            _marked[id(tensor)] = tensor


def is_marked(tensor: Any) -> bool:
    """Whether ``tensor`` is one that was given to :func:`mark`; what is computed from it is another one."""
    return tensor is not None and _marked.get(id(tensor)) is tensor
