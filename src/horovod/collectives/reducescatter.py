"""Reducescatter: every member gets its share of the rows of the combination of all members' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from horovod import _core
from horovod.collectives.base import ASYNCHRONOUS, BLOCKING, Base, current_engine
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
    ) -> int:
        """Reduce ``tensor`` over all members and keep this one's share of the rows: set rank r of n gets
        ``d // n + (r < d % n)`` of d rows, after those of lower ranks.

        Raises:
            InvalidArgumentError: ``tensor`` has no dimensions; dtype, layout, or the name is in flight; this
                rank is not in the set.
            HorovodInternalError: ``op`` is neither Sum nor Average; the world has ended.
        """
        return self._share(tensor, name, op, prescale, postscale, process_set, ASYNCHRONOUS)[0]

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
        made: T = self._finish(*self._share(tensor, name, op, prescale, postscale, process_set, BLOCKING))
        return made

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
        return self._share(tuple(tensors), name, op, prescale, postscale, process_set, ASYNCHRONOUS)[0]

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
        how = op, prescale, postscale, process_set
        made: tuple[T, ...] = self._finish(*self._share(tuple(tensors), name, *how, BLOCKING))
        return made

    def _share(
        self,
        inputs: T | tuple[T, ...],
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        mode: int,
    ) -> tuple[int, Any]:
        """The handle, and where the result will be; a tuple of inputs is a group."""
        process_set_id(process_set)
        current_engine()
        result: Any
        given: Any
        if isinstance(inputs, tuple):
            made = [self._own_rows(tensor, op, process_set) for tensor in inputs]
            result, given = tuple(out for out, _ in made), [each for _, each in made] or None
        else:
            result, given = self._own_rows(inputs, op, process_set)
        handle = self._start(
            _REDUCESCATTER,
            name,
            inputs,
            result,
            process_set,
            given=given,
            op=op,
            prescale=prescale,
            postscale=postscale,
            mode=mode,
        )
        return handle, result

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
