"""What layers that normalise over the batches of all ranks are tried with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Example:
    """The batches of all ranks, one after another, float32; rank ``r`` has the samples ``own``."""

    everything: Any
    own: slice
    upstream: Any  # gradient of the output, shape of ``everything``
    masks: Any | None  # bool, without the last dimension


def example(counts: Sequence[int], rank: int, rest: tuple[int, ...], masked: bool) -> Example:
    """
    Args:
        counts: samples of each rank, whose means differ, and are large against the deviation.
        rank: whose ``own`` is.
        rest: shape of a sample.
        masked: with masks.
    """
    random = np.random.default_rng(7)
    batches = [random.normal(size=(count, *rest)) * 2 + 50 + 3 * count for count in counts]
    everything = np.concatenate(batches).astype(np.float32)
    begin = sum(counts[:rank])
    random = np.random.default_rng(11)
    upstream = random.normal(size=everything.shape).astype(np.float32)
    masks = random.random(everything.shape[:-1]) < 0.7 if masked else None
    return Example(everything, slice(begin, begin + counts[rank]), upstream, masks)
