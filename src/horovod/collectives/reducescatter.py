"""Reducescatter: every member gets its share of the rows of the combination of all members' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import ASYNCHRONOUS, AWAITED, Base, current_engine
from horovod.collectives.frontend import Description, T
from horovod.collectives.ops import Average, Sum
from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count, process_set_id

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
        waited: bool = False,
    ) -> int:
        """Reduce ``tensor`` over all members and keep this one's share of the rows: set rank r of n gets
        ``d // n + (r < d % n)`` of d rows, after those of lower ranks.

        Raises:
            InvalidArgumentError: ``tensor`` has no dimensions; dtype, layout, or the name is in flight; this
                rank is not in the set.
            HorovodInternalError: ``op`` is neither Sum nor Average; the world has ended.
        """
        process_set_id(process_set)
        current_engine()
        out, given = self._own_rows(tensor, op, process_set)
        return self._start(
            _REDUCESCATTER,
            name,
            tensor,
            out,
            process_set,
            given=given,
            op=op,
            prescale=prescale,
            postscale=postscale,
            mode=AWAITED if waited else ASYNCHRONOUS,
        )

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
    ) -> int:
        """:meth:`reducescatter` of all ``tensors`` as one operation with one handle."""
        process_set_id(process_set)
        current_engine()
        inputs = tuple(tensors)
        made = [self._own_rows(tensor, op, process_set) for tensor in inputs]
        return self._start(
            _REDUCESCATTER,
            name,
            inputs,
            tuple(out for out, _ in made),
            process_set,
            given=[given for _, given in made] or None,
            op=op,
            prescale=prescale,
            postscale=postscale,
            mode=AWAITED if waited else ASYNCHRONOUS,
        )

    def _own_rows(self, tensor: T, op: int, process_set: ProcessSet) -> tuple[T, Description]:
        """Memory for this rank's share of the rows of ``tensor``, and how the engine takes both."""
        given = self._describe(tensor)
        shape = given[3]
        if op not in (Average, Sum):
            raise HorovodInternalError(
                f"Reducescatter supports Average and Sum only, got operator {op}.", recoverable=False
            )
        if not len(shape):
            raise InvalidArgumentError("Reducescatter shares out rows; a tensor without dimensions has none.")
        if process_set.included() is False:
            raise InvalidArgumentError(
                "Invalid process set id for this rank: it is not a member of the provided process set "
                f"{process_set}."
            )
        members = member_count(process_set)
        rows, more = divmod(shape[0], members)
        out = self.frontend.empty_rows(tensor, rows + ((process_set.rank() or 0) < more))
        return out, (given[0], self._describe(out)[0], *given[2:])
