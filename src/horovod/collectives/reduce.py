"""Reduce: one rank, the root, gets the combination of all ranks' tensors; the others keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import Base
from horovod.collectives.frontend import T
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["Reduce"]

_REDUCE: Final[int] = _core.REDUCE


class Reduce(Base[T]):
    def reduce(
        self,
        tensor: T,
        out: T,
        root_rank: int,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Reduce ``tensor`` over all ranks into the root's ``out`` (same shape and dtype; may be ``tensor``
        itself). The ``out`` of the others gets their ``tensor``. ``root_rank`` is global.

        Raises:
            InvalidArgumentError: the root is not a rank of the set; dtype, layout, the name is in flight, or
                this rank is not in the set.
            HorovodInternalError: ``op`` is Adasum; the world has ended.
        """
        return self._start(
            _REDUCE, name, tensor, out, process_set, None, (op, prescale, postscale, root_rank)
        )

    def run_reduce(
        self,
        tensor: T,
        out: T,
        root_rank: int,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> T:
        """:meth:`reduce`, waited for; returns ``out``."""
        how = op, prescale, postscale, root_rank
        self._run(_REDUCE, name, tensor, out, process_set, None, how)
        return out

    def grouped_reduce(
        self,
        tensors: Sequence[T],
        outs: Sequence[T],
        root_rank: int,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Reduce all of ``tensors`` as one operation with one handle; each like :meth:`reduce`."""
        inputs = tuple(tensors)
        results = inputs if outs is tensors else tuple(outs)
        return self._start(
            _REDUCE, name, inputs, results, process_set, None, (op, prescale, postscale, root_rank)
        )

    def run_grouped_reduce(
        self,
        tensors: Sequence[T],
        outs: Sequence[T],
        root_rank: int,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> tuple[T, ...]:
        """:meth:`grouped_reduce`, waited for; returns ``outs``."""
        inputs = tuple(tensors)
        results = inputs if outs is tensors else tuple(outs)
        how = op, prescale, postscale, root_rank
        self._run(_REDUCE, name, inputs, results, process_set, None, how)
        return results
