"""Shares of the ranks in the samples: an order that all ranks agree on, from which a part has been processed
already.
"""

from __future__ import annotations

import random

__all__ = ["remaining_indices", "share"]


def remaining_indices(length: int, shuffle: bool, seed: int, epoch: int, processed: int) -> list[int]:
    """Indices below ``length`` that are left in ``epoch``, in the order of all ranks.

    Args:
        shuffle: order by ``random.Random(seed + epoch)``, else ascending.
        processed: how many of the first ones are done.
    """
    indices = list(range(length))
    if shuffle:
        random.Random(seed + epoch).shuffle(indices)
    return indices[processed:]


def share(indices: list[int], replicas: int, rank: int) -> list[int]:
    """Every ``replicas``-th index from ``rank`` on, equally many for all ranks: ``indices`` are repeated from
    the start as far as needed."""
    count = -(-len(indices) // replicas)
    return [indices[position % len(indices)] for position in range(rank, count * replicas, replicas)]
