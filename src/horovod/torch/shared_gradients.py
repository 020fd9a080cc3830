"""Gradients in memory that the ranks of a host share: they are reduced where they lie, without a copy in or
out.

PyTorch makes the first gradient after ``zero_grad()`` itself, in private memory. A copy of it into shared
memory takes longer than the exchange saves (decision 0023). ``HOROVOD_SHARED_GRADIENTS`` has three values:

* ``0``, the default: no gradient moves. Views that a program has taken of a gradient would not move along.
* ``auto``: gradients move once, if they keep their memory from step to step
  (``zero_grad(set_to_none=False)``).
* ``1``: all gradients move, and are copied where needed.

The results have the same bits in all three.

A forked child does not have that memory (decision 0038).
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from typing import Final

import torch

from horovod.runtime import lifecycle
from horovod.torch.frontend import TorchFrontend, shared_like

__all__ = ["SharedGradients"]

_log = logging.getLogger("horovod.torch")

# Number of exchanges in which we look whether gradients keep their memory.
_LOOKS: Final = 10
_frontend = TorchFrontend()


class SharedGradients:
    """Gradients of one optimizer that lie in shared memory.

    Args:
        choice: the setting, see ``Config.shared_gradients``.
    """

    def __init__(self, choice: str) -> None:
        self.always: Final = choice == "1"
        """True if every gradient is brought into shared memory as soon as it has been computed."""
        self._wanted = choice != "0"
        self._looks_left = _LOOKS if choice == "auto" else 0
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._homes: dict[int, torch.Tensor] = {}
        self._moved: dict[int, weakref.ref[torch.Tensor]] = {}
        self._left_behind: list[torch.Tensor] = []
        _all.add(self)

    def bring(self, index: int, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient of ``parameter``, number ``index``, in shared memory if possible. It is moved if it is
        the first since ``zero_grad()``, or if somebody replaced it."""
        gradient = parameter.grad
        assert gradient is not None
        home = self._homes.get(index)
        if gradient is home or not self._wanted or not _movable(gradient):
            return gradient
        if home is None or home.shape != gradient.shape or home.dtype != gradient.dtype:
            home = self._make(gradient)
            if home is None:
                return gradient
            self._homes[index] = home
            self._moved[index] = weakref.ref(home)
        with torch.no_grad():
            home.copy_(gradient)
        parameter.grad = home
        return home

    def look(self, exchanged: Sequence[torch.Tensor | None]) -> None:
        """After an exchange: move the gradients that still have the memory that they had at the last one.

        Args:
            exchanged: by parameter, the gradient that was reduced in its own memory.
        """
        if not self._looks_left:
            return
        self._looks_left -= 1
        for index, gradient in enumerate(exchanged):
            if gradient is None:
                continue
            seen = self._seen.get(index)
            if seen is None or seen() is not gradient:
                self._seen[index] = weakref.ref(gradient)
            elif not self._move(index, gradient):
                break
        if not self._looks_left:
            self._seen.clear()

    def _move(self, index: int, gradient: torch.Tensor) -> bool:
        """Give ``gradient`` shared memory in place of its own. False: there is none for any gradient."""
        moved = self._moved.get(index)
        if (moved is not None and moved() is gradient) or not _movable(gradient):
            return True
        home = self._make(gradient)
        if home is None:
            return False
        with torch.no_grad():
            home.copy_(gradient)
        gradient.data = home
        self._moved[index] = weakref.ref(gradient)
        return True

    def _make(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Shared memory for a tensor like ``gradient``. None: there is none, and this world asks no more."""
        runtime = lifecycle.current()
        # With several hosts nothing is reduced in place, so shared memory would not help.
        if runtime.share_memory(None) and runtime.has_room_for(2 * gradient.nbytes):
            try:
                made = shared_like(gradient)
                runtime.sharing.add(self)
                return made
            except MemoryError:
                pass
        if self._moved:
            _log.warning(
                "Rank %d: no shared memory is left for gradients; the others are exchanged through copies.",
                runtime.topology.rank,
            )
        self._wanted = False
        self._looks_left = 0
        return None

    def leave(self) -> None:
        """The world ends: other ranks must not reach the gradients any more."""
        for moved in self._moved.values():
            gradient = moved()
            if gradient is not None:
                gradient.data = gradient.data.clone()
        self._moved.clear()
        self._homes.clear()
        self._seen.clear()
        self._wanted = True
        if not self.always:
            self._looks_left = _LOOKS

    def leave_to_parent(self) -> None:
        """In a forked child shared memory is not mapped: gradients that lay there become NaN."""
        for moved in self._moved.values():
            gradient = moved()
            if gradient is not None:
                # Kept, as freeing memory takes a lock that a thread of the parent may have held.
                self._left_behind.append(gradient.data)
                gradient.data = torch.full((), torch.nan, dtype=gradient.dtype).expand(gradient.shape)
        self._left_behind += self._homes.values()
        self._moved.clear()
        self._homes.clear()
        self._wanted = False
        self._looks_left = 0


_all: Final[weakref.WeakSet[SharedGradients]] = weakref.WeakSet()


def _in_child() -> None:
    for shared in _all:
        shared.leave_to_parent()


os.register_at_fork(after_in_child=_in_child)


def _movable(gradient: torch.Tensor) -> bool:
    """Return whether nobody else knows the memory of ``gradient``, as far as can be seen, and the core could
    work on it.
    """
    return (
        gradient.is_cpu
        and _frontend.peek(gradient) is not None
        and gradient.numel() > 0
        and not gradient.requires_grad
        and gradient._base is None
        and gradient.untyped_storage().nbytes() == gradient.nbytes
    )
