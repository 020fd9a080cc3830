"""Fingerprints of tensors: 64 bits that change with any bit of the values.

The bits of a tensor are read as integers and multiplied by odd random numbers, one for each place in a block
of ``BLOCK`` of them; the sums of the blocks are multiplied by odd numbers of their own. So one changed value
always changes the sum. Several changed values, or values that change places, leave it alone with a chance of
about 2^-32. Values compare as bits: a NaN equals the same NaN.
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeAlias

import numpy as np

__all__ = ["BLOCK", "block_factors", "combined", "fingerprint", "place_factors"]

Array: TypeAlias = "np.ndarray[Any, Any]"

BLOCK: Final = 1 << 14
"""Integers that are summed with factors of their own: what they are multiplied by stays in the cache."""

_AT_ONCE: Final = 1 << 18
"""Integers whose products are in memory at the same time."""

_INTEGERS: Final = {1: np.int8, 2: np.int16, 4: np.int32}


def _mixed(numbers: Array) -> Array:
    """Numbers of 64 bits that look random, one for each of ``numbers``; equal ones for equal ones only.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@functools.cache
def place_factors() -> Array:
    """Odd factors of 31 bits for the places of a block, as int64: shape ``(BLOCK,)``. Times 32 bits they do
    not overflow."""
    return ((_mixed(np.arange(BLOCK)) >> np.uint64(33)) | np.uint64(1)).astype(np.int64)


def block_factors(blocks: int) -> Array:
    """Odd factors for the sums of blocks, as int64: shape ``(blocks,)``."""
    return (_mixed(np.arange(BLOCK, BLOCK + blocks)) | np.uint64(1)).view(np.int64)


def combined(sums: Array) -> int:
    """The fingerprint of a tensor from the sums of its blocks, int64: 64 bits without a sign."""
    with np.errstate(over="ignore"):
        total = (sums * block_factors(len(sums))).sum(dtype=np.int64)
    return int(_mixed(np.array([total]).view(np.uint64))[0])


def fingerprint(values: Array) -> int:
    """The fingerprint of an array in row-major order, whatever its strides are."""
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(_INTEGERS.get(flat.itemsize, np.int32))
    whole = len(bits) // BLOCK
    factors = place_factors()
    blocks = bits[: whole * BLOCK].reshape(whole, BLOCK)
    rows = _AT_ONCE // BLOCK
    sums = [(blocks[at : at + rows] * factors).sum(axis=1) for at in range(0, whole, rows)]
    rest = bits[whole * BLOCK :]
    sums.append((rest * factors[: len(rest)]).sum(keepdims=True, dtype=np.int64))
    return combined(np.concatenate(sums))
