"""Reducescatter: every member gets its share of the rows of the combination of all members' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import Base, current_engine
from horovod.collectives.frontend import Description, T
from horovod.collectives.ops import Average, Sum
from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set, place_among, process_set_id

__all__ = ["Reducescatter"]

_REDUCESCATTER: Final[int] = _core.REDUCESCATTER


class Reducescatter(Base[T]):
    def reducescatter(
        self,
        tensor: T,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Reduce ``tensor`` over all members and keep this one's share of the rows: set rank r of n gets
        ``d // n + (r < d % n)`` of d rows, after those of lower ranks.

        Raises:
            InvalidArgumentError: ``tensor`` has no dimensions; dtype, layout, or the name is in flight; this
                rank is not in the set.
            HorovodInternalError: ``op`` is neither Sum nor Average; the world has ended.
        """
        given, out = self._own_rows(tensor, op, process_set)
        return self._start(
            _REDUCESCATTER, name, tensor, out, process_set, given, (op, prescale, postscale, 0)
        )

    def run_reducescatter(
        self,
        tensor: T,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """:meth:`reducescatter`, waited for; returns the share."""
        given, out = self._own_rows(tensor, op, process_set)
        self._run(_REDUCESCATTER, name, tensor, out, process_set, given, (op, prescale, postscale, 0))
        return out

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """:meth:`reducescatter` of all ``tensors`` as one operation with one handle."""
        inputs = tuple(tensors)
        given, outs = self._all_own_rows(inputs, op, process_set)
        return self._start(
            _REDUCESCATTER, name, inputs, outs, process_set, given, (op, prescale, postscale, 0)
        )

    def run_grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> tuple[T, ...]:
        """:meth:`grouped_reducescatter`, waited for; returns the shares."""
        inputs = tuple(tensors)
        given, outs = self._all_own_rows(inputs, op, process_set)
        self._run(_REDUCESCATTER, name, inputs, outs, process_set, given, (op, prescale, postscale, 0))
        return outs

    def _all_own_rows(
        self, tensors: tuple[T, ...], op: int, process_set: ProcessSet
    ) -> tuple[list[Description] | None, tuple[T, ...]]:
        process_set_id(process_set)
        current_engine()
        made = [self._own_rows(tensor, op, process_set) for tensor in tensors]
        return [given for given, _ in made] or None, tuple(out for _, out in made)

    def _own_rows(self, tensor: T, op: int, process_set: ProcessSet) -> tuple[Description, T]:
        """Describe ``tensor``, and the memory for this rank's share of the rows, to the engine; return that
        memory, too.
        """
        rank, members = place_among(process_set)
        given = self._describe(tensor)
        shape = given[3]
        if op not in (Average, Sum):
            raise HorovodInternalError(
                f"Reducescatter supports Average and Sum only, got operator {op}.", recoverable=False
            )
        if not shape:
            raise InvalidArgumentError("Reducescatter shares out rows; a tensor without dimensions has none.")
        rows, more = divmod(shape[0], members)
        out = self.frontend.empty_rows(tensor, rows + (rank < more))
        return (given[0], self._address(out), *given[2:]), out
