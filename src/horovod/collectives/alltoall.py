"""Alltoall: every member sends rows to each member, and gets those that are for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import Base, current_engine
from horovod.collectives.frontend import Description, T
from horovod.errors import InvalidArgumentError
from horovod.runtime.handle import Collect
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count, process_set_id

__all__ = ["Alltoall"]

_ALLTOALL: Final[int] = _core.ALLTOALL
_MOST_ROWS: Final = 2**31 - 1  # received counts are int32


class Alltoall(Base[T]):
    def alltoall(
        self,
        tensor: T,
        splits: Sequence[int],
        name: str | None,
        process_set: ProcessSet = global_process_set,
        place: Callable[[T], T] | None = None,
    ) -> int:
        """Send consecutive rows of ``tensor`` to the members: ``splits[i]`` of them to set rank i. The result
        is the pair of the rows that came, in the order of senders, and an int32 tensor of their numbers.

        Args:
            splits: one for each member; their sum may be less than the number of rows, the others stay.
                Empty: equally many for each.
            place: applied to the tensor of received numbers, to move it where the caller wants it.

        Raises:
            InvalidArgumentError: no rows to split; splits of another length, negative, or too many; or
                without splits a number of rows that the members do not divide.
        """
        given, inputs, collect = self._rows_to_send(tensor, splits, process_set, place)
        return self._start(_ALLTOALL, name, inputs, None, process_set, given, collect=collect)

    def run_alltoall(
        self,
        tensor: T,
        splits: Sequence[int],
        name: str | None,
        process_set: ProcessSet = global_process_set,
        place: Callable[[T], T] | None = None,
    ) -> tuple[T, T]:
        """:meth:`alltoall`, waited for; returns the pair."""
        given, inputs, collect = self._rows_to_send(tensor, splits, process_set, place)
        made: tuple[T, T] = self._run(
            _ALLTOALL, name, inputs, None, process_set, given=given, collect=collect
        )
        return made

    def run_even_alltoall(
        self, tensor: T, name: str | None, process_set: ProcessSet = global_process_set
    ) -> T:
        """:meth:`run_alltoall` without splits, for who does not ask how many rows came from whom: each member
        gets equally many. Returns those that came, in the order of senders; shape and dtype of ``tensor``.

        Raises:
            InvalidArgumentError: no rows to split, or a number of them that the members do not divide.
        """
        current_engine()
        members = member_count(process_set)
        described = self._describe(tensor, 0)
        _check_splits(described[3], (), members)
        rows: T = self._run(_ALLTOALL, name, tensor, None, process_set, described, collect=self._from_one)
        return rows

    def _rows_to_send(
        self,
        tensor: T,
        splits: Sequence[int],
        process_set: ProcessSet,
        place: Callable[[T], T] | None,
    ) -> tuple[Description, tuple[T, T], Collect]:
        """Prepare the rows to be sent: descriptions for the engine of ``tensor`` and of the memory for the
        received numbers; both of these; and the function that makes the pair of the result.
        """
        process_set_id(process_set)
        current_engine()
        described = self._describe(tensor, 0)
        members = member_count(process_set)
        _check_splits(described[3], splits, members)
        received = self.frontend.empty_counts(members)

        def collect(made: list[object], inputs: tuple[T, T]) -> tuple[T, T]:
            return self._taken(made[0], inputs[0]), received if place is None else place(received)

        place_of_rows = described[4:7] or (_core.HOST, 0, 0)
        given = (*described[:4], *place_of_rows, splits, self._address(received))
        return given, (tensor, received), collect


def _check_splits(shape: Sequence[int], splits: Sequence[int], members: int) -> None:
    if not shape:
        raise InvalidArgumentError("Alltoall sends rows; a tensor without dimensions has none.")
    rows = shape[0]
    if not splits:
        if rows % members:
            raise InvalidArgumentError(
                f"Without splits the first dimension must be divisible by the number of members: {rows} rows "
                f"for {members}."
            )
        _check_counts(rows // members)
        return
    if len(splits) != members:
        raise InvalidArgumentError(
            f"Number of splits ({len(splits)}) differs from that of members ({members})."
        )
    if min(splits) < 0:
        raise InvalidArgumentError(f"Splits must not be negative: {list(splits)}.")
    if sum(splits) > rows:
        raise InvalidArgumentError(
            f"Sum of splits ({sum(splits)}) is greater than the number of rows ({rows})."
        )
    _check_counts(max(splits))


def _check_counts(most: int) -> None:
    if most > _MOST_ROWS:
        raise InvalidArgumentError(f"More than {_MOST_ROWS} rows to one member; use a wider tensor.")
