"""Sharing a data set out among ranks: the arithmetic for all frameworks, and positions in arrays.

Collectives need every rank to take the same number of steps. So all shards have equally many samples, and
where the number of samples does not divide by that of ranks, ``remainder`` says what happens to the rest:

* ``"repeat"``, the default: nothing is lost. Shards that lack samples get some that come a second time.
* ``"drop"``: no sample comes twice. Shards that have more than others leave the rest out.
* ``"pad"``: as ``"repeat"``, and every sample is marked: whether it counts, or only fills the shard.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["REMAINDERS", "IndexShard", "check_choice", "common_count", "place", "shard_indices"]

REMAINDERS: Final = ("repeat", "drop", "pad")


class _Members(Protocol):
    """The part of a process set that is used here."""

    def size(self) -> int | None: ...

    def rank(self) -> int | None: ...


@dataclass(frozen=True)
class IndexShard:
    """The samples of one rank.

    Attributes:
        indices: int64 ``(n,)``, positions in the data set; ``n`` is the same on every rank.
        real: bool ``(n,)``, False where a sample only fills the shard and another rank, or this one, has it
            already. Weights of a sum over all ranks that counts every sample once.
        rank, size: whose shard, of how many.
    """

    indices: NDArray[np.int64]
    real: NDArray[np.bool_]
    rank: int
    size: int

    def __len__(self) -> int:
        return len(self.indices)


def shard_indices(
    count: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    remainder: str = "repeat",
    rank: int | None = None,
    size: int | None = None,
    process_set: _Members | None = None,
) -> IndexShard:
    """The positions that are this rank's among ``count`` samples: every ``size``-th, from ``rank`` on.

    For data in memory: ``x[shard.indices]`` works for NumPy, JAX and PyTorch alike.

    Args:
        count: number of samples, equal on all ranks.
        seed: shuffle all samples with it and ``epoch`` before they are dealt out; equal on all ranks.
        epoch: gives another order, and so another shard, to each epoch.
        remainder: ``"repeat"``, ``"drop"`` or ``"pad"``, see the module; ``pad`` and ``repeat`` have the same
            indices.
        rank, size: of which shard; by default those of this process.
        process_set: deal out among its members instead of all ranks.

    Raises:
        ValueError: an argument makes no sense, or a shard would be empty.
        NotInitializedError: ``init()`` has not been called, and ``rank`` and ``size`` are not given.
    """
    import numpy as np

    rank, size = place(rank, size, process_set)
    check_choice("remainder", remainder, REMAINDERS)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidArgumentError(f"count must be a number of samples, got {count!r}.")
    quotient, rest = divmod(count, size)
    length = common_count([quotient + (each < rest) for each in range(size)], remainder)
    order = np.arange(count) if seed is None else np.random.default_rng((seed, epoch)).permutation(count)
    positions = np.arange(length, dtype=np.int64) * size + rank
    return IndexShard(order[positions % count].astype(np.int64), positions < count, rank, size)


def place(rank: int | None, size: int | None, process_set: _Members | None) -> tuple[int, int]:
    """Return the shard's number, and how many shards there are.

    Raises:
        ValueError: only one of ``rank`` and ``size`` is given, or they and a set; they are no rank and size;
            this process is not in ``process_set``, or that is not registered.
        NotInitializedError: there is no world to ask.
    """
    if (rank is None) != (size is None):
        raise InvalidArgumentError(
            "Give both rank and size, or neither: then they are those of this process."
        )
    if rank is not None and size is not None:
        if process_set is not None:
            raise InvalidArgumentError("Give either rank and size or a process_set, not both.")
        try:
            rank, size = operator.index(rank), operator.index(size)
        except TypeError:
            raise InvalidArgumentError(
                f"rank and size must be integers, got {rank!r} and {size!r}."
            ) from None
        if not 0 <= rank < size:
            raise InvalidArgumentError(
                f"There is no rank {rank} among {size}: it must be from 0 to size - 1."
            )
        return rank, size
    if process_set is None:
        topology = lifecycle.current().topology
        return topology.rank, topology.size
    members, mine = process_set.size(), process_set.rank()
    if members is None or mine is None:
        raise InvalidArgumentError(f"{process_set} is not registered; register it before sharding among it.")
    return mine, members


def common_count(counts: Sequence[int], remainder: str) -> int:
    """Number of samples that every shard gets, if by themselves they have ``counts``.

    Raises:
        ValueError: that would be none, though there are samples; or none are there at all.
    """
    if not sum(counts):
        raise InvalidArgumentError("There are no samples to share out.")
    if remainder == "drop" and min(counts) == 0:
        empty = counts.index(0)
        raise InvalidArgumentError(
            f"There are {sum(counts)} samples for {len(counts)} ranks: rank {empty} would have none, "
            "and with remainder='drop' nobody would have any. Use remainder='repeat', or fewer ranks."
        )
    return min(counts) if remainder == "drop" else max(counts)


def check_choice(what: str, given: Any, choices: Sequence[str]) -> None:
    """Raise ValueError, naming the ``choices``, if ``given`` is none of them."""
    if given not in choices:
        raise InvalidArgumentError(f"{what} must be one of {', '.join(map(repr, choices))}, got {given!r}.")
