"""Process sets: which ranks take part in an operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horovod import _runtime
from horovod.errors import InvalidArgumentError

__all__ = ["ProcessSet", "global_process_set"]


class ProcessSet:
    """Some ranks of the world, which can run operations among themselves once the set is registered.

    Sets are equal only if they are the same object.

    Attributes:
        process_set_id: number of the set; ``None`` until it is registered, 0 for all ranks.
        ranks: the members in ascending order.
        mpi_comm: communicator that describes the set, or ``None``.
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """
        Raises:
            ValueError: not an iterable of ints (a communicator would need MPI, which is not part of this
                build).
        """
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise InvalidArgumentError(
                "ProcessSet takes ranks, or a communicator in a build with MPI support; "
                f"this build has none and got {type(ranks_or_comm).__name__}."
            ) from None
        for rank in ranks:
            if not isinstance(rank, int):
                raise InvalidArgumentError(f"ProcessSet takes ranks of type int, got {rank!r}.")
        self._ranks = sorted(ranks)

    @property
    def ranks(self) -> list[int] | None:
        return self._ranks

    def size(self) -> int | None:
        """Number of members; ``None`` if the set is not registered."""
        if self.process_set_id is None:
            return None
        return len(self.ranks or ())

    def rank(self) -> int | None:
        """Position of this process in the set; ``None`` if the set is not registered.

        Raises:
            ValueError: this process is not a member, or ``init()`` has not been called.
        """
        if self.process_set_id is None:
            return None
        me = _runtime.current().topology.rank
        members = self.ranks or []
        if me not in members:
            raise InvalidArgumentError(f"Rank {me} is not part of provided process set {self}.")
        return members.index(me)

    def included(self) -> bool | None:
        """Whether this process is a member; ``None`` if the members are not known.

        Raises:
            NotInitializedError: ``init()`` has not been called.
        """
        if self.ranks is None:
            return None
        return _runtime.current().topology.rank in self.ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )


class _GlobalProcessSet(ProcessSet):
    """All ranks. The members follow the current world: none before ``init()``."""

    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int]:
        if not _runtime.is_initialized():
            return []
        return list(range(_runtime.current().topology.size))


global_process_set: ProcessSet = _GlobalProcessSet()


def process_set_id(process_set: ProcessSet) -> int:
    """Number of ``process_set``, for the core.

    Raises:
        TypeError: the set is not registered.
    """
    number = process_set.process_set_id
    if number is None:
        raise TypeError(f"{process_set} is not registered; register it before using it in an operation.")
    return number
