"""Process sets: which ranks take part in an operation, and how a set gets its number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from horovod.backends import communicators
from horovod.errors import (
    BackendError,
    CollectiveTimeout,
    HorovodInternalError,
    InvalidArgumentError,
    PeerLostError,
    ProcessSetError,
)
from horovod.runtime import lifecycle

__all__ = [
    "ProcessSet",
    "add_process_set",
    "checked_set",
    "global_process_set",
    "init_with_sets",
    "member_count",
    "place_among",
    "process_set_id",
    "remove_process_set",
]

_changing = threading.Lock()  # one thread at a time adds or removes: all ranks do it in one order


class ProcessSet:
    """Some ranks of the world, which can run operations among themselves once the set is registered: by
    ``init(process_sets=[...])`` or :func:`add_process_set`.

    Sets are equal only if they are the same object. A set loses its number when it is removed and at
    ``shutdown()``; the object can be registered again.

    Attributes:
        process_set_id: number of the set; ``None`` until it is registered, 0 for all ranks.
        mpi_comm: communicator that describes the set, or ``None``.
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        """
        Args:
            ranks_or_comm: ranks of the world, in any order. Or a communicator of mpi4py, for
                ``init(comm, process_sets)``: its members; ranks of the world that hold different
                communicators at one place of the list make a set of each of them.

        Raises:
            ValueError: neither a communicator nor an iterable of ints.
        """
        self._ranks: list[int] | None = None
        if communicators.is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise InvalidArgumentError(
                f"ProcessSet takes ranks or a communicator of mpi4py, got {type(ranks_or_comm).__name__}."
            ) from None
        for rank in ranks:
            if not isinstance(rank, int):
                raise InvalidArgumentError(f"ProcessSet takes ranks of type int, got {rank!r}.")
        self._ranks = sorted(ranks)

    @property
    def ranks(self) -> list[int] | None:
        """The members in ascending order; ``None`` until ``init()`` for those of a communicator."""
        return self._ranks

    def _describe(self, ranks: list[int] | None) -> None:
        """The members that a communicator stands for are known once the world is formed."""
        self._ranks = ranks

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
        me = lifecycle.current().topology.rank
        members = self.ranks or []
        if me not in members:
            raise InvalidArgumentError(f"Rank {me} is not part of provided process set {self}.")
        return members.index(me)

    def included(self) -> bool | None:
        """Return whether this process is a member; ``None`` if the members are not known.

        Raises:
            NotInitializedError: ``init()`` has not been called.
        """
        if self.ranks is None:
            return None
        return lifecycle.current().topology.rank in self.ranks

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
        if not lifecycle.is_initialized():
            return []
        return list(range(lifecycle.current().topology.size))

    @property
    def mpi_comm(self) -> Any:
        return lifecycle.current().communicator if lifecycle.is_initialized() else None


global_process_set: ProcessSet = _GlobalProcessSet()


def checked_set(process_set: Any) -> Any:
    """``process_set``, registered or not.

    Raises:
        TypeError: it is none.
    """
    if not hasattr(process_set, "process_set_id"):
        raise TypeError(
            f"process_set must be a hvd.ProcessSet, got {process_set!r}. Register one by "
            "hvd.init(process_sets=[hvd.ProcessSet([0, 1])]) and pass it."
        )
    return process_set


def process_set_id(process_set: ProcessSet) -> int:
    """Number of ``process_set``, for the core.

    Raises:
        TypeError: the set is not registered, or is none.
    """
    try:
        number = process_set.process_set_id
    except AttributeError:
        number = checked_set(process_set).process_set_id
    if number is None:
        raise TypeError(f"{process_set} is not registered; register it before using it in an operation.")
    return number


def member_count(process_set: ProcessSet) -> int:
    """Number of members of a registered set; for the global one, of all ranks.

    Raises:
        TypeError: the set is not registered.
        NotInitializedError: there is no world.
    """
    process_set_id(process_set)
    if process_set is global_process_set:
        return lifecycle.current().topology.size
    return len(process_set.ranks or ())


def place_among(process_set: ProcessSet) -> tuple[int, int]:
    """Set rank of this process, and the number of members of a registered set.

    Raises:
        TypeError: the set is not registered.
        NotInitializedError: there is no world.
        InvalidArgumentError: this process is not a member.
    """
    if process_set is global_process_set:
        topology = lifecycle.current().topology
        return topology.rank, topology.size
    process_set_id(process_set)
    me, members = lifecycle.current().topology.rank, process_set.ranks or []
    if me not in members:
        raise InvalidArgumentError(
            f"Invalid process set id for this rank: it is not a member of the provided process set "
            f"{process_set}."
        )
    return members.index(me), len(members)


# -- registration -------------------------------------------------------------------------------------------


def init_with_sets(
    process_sets: Sequence[ProcessSet], communicator: communicators.CommunicatorWorld | None = None
) -> None:
    """Form the world, and number ``process_sets`` in it: 1, 2, … in this order. If the world stands already,
    they must be sets that it has.

    Args:
        process_sets: the same ranks in the same order on every rank, members or not.
        communicator: the world that is to be formed; None: that of the environment.

    Raises:
        ValueError: not sets; or a set has a repeated rank or one that does not exist, or the ranks differ:
            then there is no world, also in later attempts. Or a set is there twice or has all ranks: the
            world stands, and a second call without it works.
        KeyError: the world stands and does not have such a set.
        NotImplementedError: a set that is described by a communicator, in a world that is not.
    """
    for each in process_sets:
        if not isinstance(each, ProcessSet):
            raise InvalidArgumentError(f"process_sets must hold ProcessSet objects, got {each!r}.")
    meant = _meant(process_sets, communicator)
    runtime = lifecycle.start(process_sets=[ranks for _, ranks, _ in meant], communicator=communicator)
    if not process_sets:
        return
    seen = [list(range(runtime.topology.size))]
    for index, ranks, _ in meant:
        if ranks in seen:
            raise InvalidArgumentError(
                f"process_sets[{index}] {process_sets[index]} is a duplicate of "
                f"{'an earlier one' if seen.index(ranks) else 'the global process set'}. Horovod stays "
                "initialized; call init() again without it."
            )
        seen.append(ranks)
    lifecycle.when_entered(lambda world: _number_all(world, process_sets, meant))


def _number_all(
    runtime: lifecycle.Runtime,
    process_sets: Sequence[ProcessSet],
    meant: Sequence[tuple[int, list[int], bool]],
) -> None:
    """The numbers that the world has for the sets of `_meant`."""
    with _changing:
        numbers = {tuple(ranks): number for number, ranks in runtime.engine.process_sets().items()}
        for index, ranks, _ in meant:
            if tuple(ranks) not in numbers:
                raise KeyError(
                    f"{process_sets[index]} was not among the process sets of the first init(). Call "
                    "shutdown() first, or use add_process_set()."
                )
        for index, ranks, mine in meant:
            if mine:
                process_sets[index]._describe(ranks)
                _number(runtime, process_sets[index], numbers[tuple(ranks)])


def _meant(
    process_sets: Sequence[ProcessSet], communicator: communicators.CommunicatorWorld | None
) -> list[tuple[int, list[int], bool]]:
    """The sets that a list means, the same on every rank: place in the list, ranks, and whether it is the one
    that the object of this process stands for. Only communicators mean several, or none that is ours.
    """
    described = [each.mpi_comm for each in process_sets if each.mpi_comm is not None]
    found: Iterator[tuple[list[list[int]], list[int] | None]] = iter(())
    if described:
        world = None
        if communicator is not None:
            world = communicator.communicator
        elif lifecycle.is_initialized():
            world = lifecycle.current().communicator
        if world is None:
            raise NotImplementedError(
                "A process set is described by a communicator, but the world is not: call init(comm) with "
                "a communicator, or give the ranks of the set."
            )
        found = iter(communicators.members(world, described))
    meant = []
    for index, each in enumerate(process_sets):
        if each.mpi_comm is None:
            meant.append((index, each.ranks or [], True))
        else:
            sets, mine = next(found)
            meant += [(index, ranks, ranks == mine) for ranks in sets]
    return meant


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set of ranks while the world stands. Collective over all ranks, members or not, which must
    add and remove sets in the same order; returns when all have called.

    Args:
        process_set: a set, or the ranks of one; the same on every rank.

    Returns:
        The registered set: ``process_set`` itself if it is one.

    Raises:
        ValueError: ``init()`` has not been called, ``HOROVOD_DYNAMIC_PROCESS_SETS`` was not set by then, a
            rank is repeated or does not exist, there is such a set already; the ranks disagree
            (``ProcessSetError``), or the world is shutting down.
        NotImplementedError: the set is described by a communicator.
        HorovodInternalError: a rank was lost.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    runtime = _dynamic_world("add_process_set()")
    _refuse_communicator(added)
    ranks = added.ranks or []
    if problem := runtime.wrong_ranks(ranks):
        raise InvalidArgumentError(f"{added} {problem}.")
    engine = runtime.engine
    with _changing:
        for number, members in engine.process_sets().items():
            if members == ranks:
                raise InvalidArgumentError(
                    f"{added} is a duplicate process set: number {number} is the same."
                )
        number = _change(f"{added} was not added", engine.wait, lambda: engine.add_process_set(ranks))
        _number(runtime, added, number)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set that is not needed any more. Collective over all ranks, like :func:`add_process_set`.

    What is still queued on the set fails with ``HorovodInternalError``. Its number may be used again.

    Returns:
        Whether there was something to remove: ``False``, at once, for the global set and for one that is not
        registered. ``process_set_id`` is ``None`` afterwards, unless it is the global set.

    Raises:
        ValueError: ``HOROVOD_DYNAMIC_PROCESS_SETS`` was not set before ``init()``; the ranks disagree
            (``ProcessSetError``), or the world is shutting down.
        TypeError: it is no process set.
        HorovodInternalError: a rank was lost.
    """
    if checked_set(process_set).process_set_id in (None, 0):
        return False
    runtime = _dynamic_world("remove_process_set()")
    with _changing:
        return _remove(runtime, process_set)


def _remove(runtime: lifecycle.Runtime, process_set: ProcessSet) -> bool:
    engine = runtime.engine
    number = process_set.process_set_id
    if number is None:  # another thread has removed it meanwhile
        return False
    known = number in engine.process_sets()
    if known:
        _change(f"{process_set} was not removed", engine.wait, lambda: engine.remove_process_set(number))
    for each in [process_set, *runtime.numbered]:
        if each.process_set_id == number:
            each.process_set_id = None
    return known


def _dynamic_world(who: str) -> lifecycle.Runtime:
    runtime = lifecycle.current()
    if not runtime.config.dynamic_process_sets:
        raise InvalidArgumentError(
            f"{who} needs HOROVOD_DYNAMIC_PROCESS_SETS=1 in the environment before init(), or "
            'init(process_sets="dynamic").'
        )
    return runtime


def _refuse_communicator(process_set: ProcessSet) -> None:
    if process_set.mpi_comm is not None:
        raise NotImplementedError(f"{process_set} is described by a communicator; give its ranks instead.")


def _change(failed: str, wait: Callable[[int], Any], submit: Callable[[], int]) -> int:
    """Run a change of the sets, which all ranks take part in, to its end."""
    try:
        number = wait(submit())
    except (PeerLostError, CollectiveTimeout, BackendError):
        raise
    except HorovodInternalError as error:
        raise ProcessSetError(
            f"{failed}: the ranks disagree or Horovod is shutting down. {error}",
            recoverable=error.recoverable,
        ) from error
    assert isinstance(number, int)
    return number


def _number(runtime: lifecycle.Runtime, process_set: ProcessSet, number: int) -> None:
    process_set.process_set_id = number
    runtime.numbered.add(process_set)
