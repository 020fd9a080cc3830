"""Barrier: nobody returns before everybody has called."""

from __future__ import annotations

from typing import Final

from horovod import _core
from horovod.collectives.base import Base, current_engine
from horovod.collectives.frontend import T
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id

__all__ = ["Barrier"]

_BARRIER: Final[int] = _core.BARRIER


class Barrier(Base[T]):
    def barrier(self, process_set: ProcessSet = global_process_set) -> None:
        """Return after every member has called.

        Raises:
            IndexError: the set has a number that does not exist (any more).
        """
        engine = current_engine()
        number = process_set_id(process_set)
        if number and number not in engine.process_sets():
            raise IndexError(f"{process_set} does not exist, or has not been registered.")
        self._run(_BARRIER, None, None, None, process_set)
