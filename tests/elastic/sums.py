"""Training whose result is known, whatever the course of the job.

All numbers are integers modulo 2**64, so that their sum has no order. The weights after an epoch are the sum
over all records, each once, and then a step that does not commute with sums: a record that is lost, or seen
twice, or in another epoch, changes everything after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["WIDTH", "Weights", "digest", "end_epoch", "gradient", "start", "weights_after"]

WIDTH = 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD1342543DE82EF95)

Weights = npt.NDArray[np.uint64]


def start() -> Weights:
    return np.arange(WIDTH, dtype=np.uint64)


def gradient(records: Sequence[int], epoch: int) -> Weights:
    """The sum over these records, in no order: shape (WIDTH,)."""
    each = np.asarray(records, np.uint64)[:, None] + np.uint64(1)
    mixed = (each * _ODD + np.uint64(epoch)) * (np.arange(WIDTH, dtype=np.uint64) * _MIX + np.uint64(1))
    mixed ^= mixed >> np.uint64(29)
    total: Weights = (mixed * _MIX).sum(axis=0, dtype=np.uint64)
    return total


def end_epoch(weights: Weights) -> Weights:
    """What does not commute with sums."""
    return weights * _ODD + (weights >> np.uint64(31))


def weights_after(epochs: int, records: int) -> Weights:
    """What any course of training must give."""
    weights = start()
    for epoch in range(epochs):
        weights = end_epoch(weights + gradient(range(records), epoch))
    return weights


def digest(weights: npt.NDArray[np.generic]) -> str:
    return hashlib.sha256(np.ascontiguousarray(weights).tobytes()).hexdigest()
