"""Who closes a descriptor: the owner here, until it is handed over."""

from __future__ import annotations

import os

__all__ = ["Descriptors"]


class Descriptors:
    """Open descriptors that belong to one owner; closed together unless released."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def adopt(self, descriptor: int) -> int:
        """Own ``descriptor`` from now on."""
        self._open.add(descriptor)
        return descriptor

    def release(self, descriptor: int) -> int:
        """Give ``descriptor`` to somebody else; -1 stands for none and passes through."""
        self._open.discard(descriptor)
        return descriptor

    def close(self) -> None:
        """Close what is still owned. Idempotent."""
        while self._open:
            os.close(self._open.pop())
