"""Rows that a shard reads in an epoch, and their order: arithmetic only.

All rows, in the order of the epoch's row groups, are cut into as many equal parts as there are shards. So
all shards have equally many rows, give or take one, however many row groups there are and however large; a
row group on a border is read by both its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

__all__ = ["Block", "Piece", "blocks", "deal", "order_of", "part_of"]


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of a row group."""

    group: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Block:
    """Pieces that are in memory together, and whose rows are shuffled together.

    Attributes:
        seed: of their order; ``None`` = as they come.
    """

    pieces: tuple[Piece, ...]
    size_bytes: int
    seed: tuple[int, ...] | None


def order_of(groups: int, seed: int | None, epoch: int) -> list[int]:
    """The order of ``groups`` row groups in an epoch, the same for all shards."""
    if seed is None:
        return list(range(groups))
    return [int(each) for each in np.random.default_rng((seed, epoch)).permutation(groups)]


def part_of(rows: int, shard: int, shards: int) -> tuple[int, int]:
    """The first of ``rows`` that is the shard's, and the one after its last. With fewer rows than shards each
    shard has one, which others have, too."""
    first, end = rows * shard // shards, rows * (shard + 1) // shards
    return (first, end) if end > first else (shard % rows, shard % rows + 1)


def deal(rows: Sequence[int], order: Sequence[int], shard: int, shards: int) -> list[Piece]:
    """The pieces of a shard.

    Args:
        rows: how many each row group has.
        order: the row groups of the epoch.
    """
    first, end = part_of(sum(rows), shard, shards)
    pieces = []
    for group, after in zip(order, accumulate(rows[group] for group in order), strict=True):
        before = after - rows[group]
        if before < end and after > first:
            pieces.append(Piece(group, max(first - before, 0), min(end - before, rows[group])))
    return pieces


def blocks(
    pieces: Sequence[Piece], sizes_bytes: Sequence[int], limit_bytes: int, seed: tuple[int, ...] | None
) -> Iterator[Block]:
    """Pieces that follow each other, as many as stay below the limit; but at least two where rows are
    shuffled, as those of one row group are often alike.

    Args:
        sizes_bytes: of each row group.
        seed: of the epoch's shuffle; ``None`` = none, and each piece is by itself.
    """
    least = 1 if seed is None else 2
    number, start = 0, 0
    while start < len(pieces):
        stop, total = start, 0
        while stop < len(pieces):
            more = sizes_bytes[pieces[stop].group]
            if stop - start >= least and (seed is None or total + more > limit_bytes):
                break
            total, stop = total + more, stop + 1
        yield Block(tuple(pieces[start:stop]), total, None if seed is None else (*seed, number))
        number, start = number + 1, stop
