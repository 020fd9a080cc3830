"""Allgather: every rank gets the rows of all ranks, in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import Base
from horovod.collectives.frontend import T
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["Allgather"]

_ALLGATHER: Final[int] = _core.ALLGATHER


class Allgather(Base[T]):
    def allgather(
        self,
        tensor: T,
        name: str | None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Concatenate every rank's ``tensor`` along the first dimension, whose length may differ between
        ranks.

        Raises:
            HorovodInternalError: ``tensor`` has no dimensions ("rank-zero tensor").
        """
        return self._start(_ALLGATHER, name, tensor, None, process_set)

    def run_allgather(self, tensor: T, name: str | None, process_set: ProcessSet = global_process_set) -> T:
        """:meth:`allgather`, waited for; returns what was gathered."""
        given = self._describe(tensor, 0)
        made: T = self._run(_ALLGATHER, name, tensor, None, process_set, given, collect=self._from_one)
        return made

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Gather all of ``tensors`` as one operation with one handle."""
        return self._start(_ALLGATHER, name, tuple(tensors), None, process_set)

    def run_grouped_allgather(
        self, tensors: Sequence[T], name: str | None, process_set: ProcessSet = global_process_set
    ) -> tuple[T, ...]:
        """:meth:`grouped_allgather`, waited for; returns what was gathered."""
        made: tuple[T, ...] = self._run(_ALLGATHER, name, tuple(tensors), None, process_set)
        return made
