"""Broadcast: every rank gets the tensor of one, the root."""

from __future__ import annotations

from typing import Final

from horovod import _core
from horovod.collectives.base import Base
from horovod.collectives.frontend import T
from horovod.collectives.ops import Sum
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["Broadcast"]

_BROADCAST: Final[int] = _core.BROADCAST


class Broadcast(Base[T]):
    def broadcast(
        self,
        tensor: T,
        out: T,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Copy the root's ``tensor`` into every rank's ``out`` (may be ``tensor``). ``root_rank`` is global.

        Raises:
            InvalidArgumentError: the root is not a rank of the set.
        """
        return self._start(_BROADCAST, name, tensor, out, process_set, None, (Sum, 1.0, 1.0, root_rank))

    def run_broadcast(
        self, tensor: T, out: T, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> T:
        """:meth:`broadcast`, waited for; returns ``out``."""
        self._run(_BROADCAST, name, tensor, out, process_set, None, (Sum, 1.0, 1.0, root_rank))
        return out
