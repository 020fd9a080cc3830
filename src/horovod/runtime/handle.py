"""Outstanding operations: what is needed to return their results.

These entries do not keep the memory alive while the core works on it. The native call does: it holds the
tensors (``owners`` of ``_core.Engine.submit``) before the core knows an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from horovod._core import Engine
    from horovod.runtime.world import Runtime

Collect: TypeAlias = Callable[[list[object], Any], Any]

Pending: TypeAlias = tuple["Engine", Any, Any, Collect | None]
"""Engine that runs the operation · its inputs · its result, if known beforehand · else how to build the
result from the buffers that the engine allocated, and the inputs. A plain tuple: one is built for every
submission."""


class HandleTable:
    """Outstanding operations of one framework, by handle number. A handle belongs to one engine (one
    ``init``), and later engines of this process do not reuse it. Implements ``world.Follower``."""

    __slots__ = ("_abandoned", "pending")

    def __init__(self) -> None:
        # Read and written directly by the hot paths of `collectives` and `exchange`.
        self.pending: dict[int, Pending] = {}
        self._abandoned: list[int] = []

    def abandon(self, handles: list[int]) -> None:
        """Forget results that nobody will wait for. Their tensors are kept until the operations have
        completed."""
        self._abandoned.extend(handles)
        if self._abandoned:
            self.sweep()

    def sweep(self) -> None:
        """Let go of abandoned operations that have completed."""
        still: list[int] = []
        for handle in self._abandoned:
            entry = self.pending.get(handle)
            if entry is None:
                continue
            engine = entry[0]
            try:
                if not engine.poll(handle):
                    still.append(handle)
                    continue
                engine.wait(handle)
            except (HorovodInternalError, ValueError):
                pass  # it failed, or an interrupted wait for several has consumed it; nobody waits for it
            del self.pending[handle]
        self._abandoned = still

    def enter(self, runtime: Runtime) -> None:
        """A new world: handles of the one before mean nothing in it."""
        self.forget()

    def leave(self) -> None:
        """The world has ended: release all tensors. A later call for a result raises the engine's error."""
        for handle, (engine, *_) in list(self.pending.items()):
            self.pending[handle] = (engine, None, None, None)

    def forget(self) -> None:
        """Drop everything: the engine that knew these numbers has ended."""
        self.pending.clear()
        self._abandoned.clear()
