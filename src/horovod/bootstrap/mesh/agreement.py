"""Agreement of all ranks, before they connect, on the process sets that exist from the start and on what
moves their bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from horovod.errors import ConfigError, InvalidArgumentError

__all__ = ["Sets", "agree_on_operations", "agree_on_sets", "wrong_ranks"]

Sets = Sequence[Sequence[int]]
"""Members of process sets, each in ascending order."""

_SHOWN = 8


def agree_on_sets(said: Sequence[Sets]) -> list[list[int]]:
    """The sets to create, from what every rank named (``said`` by rank).

    Sets that appear again, and the one of all ranks, are left out: whoever named them is told by
    :func:`horovod.runtime.process_set.init_with_sets`, and the world stands nevertheless.

    Raises:
        InvalidArgumentError: a set has a repeated rank or one that does not exist, or the ranks differ. Every
            rank gets the same text.
    """
    size = len(said)
    for rank, sets in enumerate(said):
        for index, ranks in enumerate(sets):
            if problem := wrong_ranks(ranks, size):
                raise InvalidArgumentError(
                    f"Horovod initialization failed: process_sets[{index}] on rank {rank} {problem}."
                )
    for rank, sets in enumerate(said):
        if list(map(list, sets)) != list(map(list, said[0])):
            raise InvalidArgumentError(
                f"Horovod initialization failed: the ranks passed different process sets to init(): "
                f"{_difference(said[0], sets, rank)}. All ranks, members or not, must name all sets in the "
                "same order."
            )
    unique: list[list[int]] = []
    for ranks in said[0]:
        if list(ranks) not in unique and list(ranks) != list(range(size)):
            unique.append(list(ranks))
    return unique


def wrong_ranks(ranks: Sequence[int], size: int) -> str:
    """Say what is wrong with ``ranks`` (ascending) as a set in a world of ``size``; empty if nothing is."""
    if not ranks:
        return "has no ranks"
    for rank, following in itertools.pairwise(ranks):
        if rank == following:
            return f"has rank {rank} more than once: {_shown(ranks)}"
    if ranks[0] < 0 or ranks[-1] >= size:
        outside = ranks[0] if ranks[0] < 0 else ranks[-1]
        return f"has rank {outside}, but the ranks are 0 to {size - 1}: {_shown(ranks)}"
    return ""


def _difference(first: Sets, other: Sets, rank: int) -> str:
    if len(first) != len(other):
        return f"rank 0 passed {len(first)}, rank {rank} passed {len(other)}"
    index = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if list(a) != list(b))
    return (
        f"process_sets[{index}] is {_shown(first[index])} on rank 0 and {_shown(other[index])} on rank {rank}"
    )


def _shown(ranks: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ranks[:_SHOWN]))}{', ...' if len(ranks) > _SHOWN else ''}]"


def agree_on_operations(said: Sequence[str]) -> None:
    """Compare ``HOROVOD_CPU_OPERATIONS`` of all ranks (``said`` by rank).

    Raises:
        ConfigError: two ranks differ; every rank gets the same text.
    """
    for rank, operations in enumerate(said):
        if operations != said[0]:
            raise ConfigError(
                f"The ranks disagree on what moves their bytes: HOROVOD_CPU_OPERATIONS is {said[0]} on rank "
                f"0 and {operations} on rank {rank}. Set it to the same on every rank.",
                variable="HOROVOD_CPU_OPERATIONS",
            )
