"""Allgather: every rank gets the rows of all ranks, in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import ASYNCHRONOUS, AWAITED, Base
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
        waited: bool = False,
    ) -> int:
        """Concatenate every rank's ``tensor`` along the first dimension, whose length may differ between
        ranks.

        Raises:
            HorovodInternalError: ``tensor`` has no dimensions ("rank-zero tensor").
        """
        return self._start(
            _ALLGATHER, name, tensor, None, process_set, mode=AWAITED if waited else ASYNCHRONOUS
        )

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
    ) -> int:
        """Gather all of ``tensors`` as one operation with one handle."""
        return self._start(
            _ALLGATHER, name, tuple(tensors), None, process_set, mode=AWAITED if waited else ASYNCHRONOUS
        )
