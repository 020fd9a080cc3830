"""Values of the cases by plain arithmetic, and the kinds of arrays that they run with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.contract.world import Cases
from tests.fakes import arrays as device

import horovod.arrays as hvd

__all__ = ["CHUNK", "SIZES", "everyone", "mine", "numpy_of", "same", "with_each_kind"]

#: float32 elements of a chunk in which arrays of devices travel.
CHUNK = (2 << 20) // 4
SIZES = (0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7)

Make = Callable[[Any], Any]
KINDS: dict[str, Make] = {"numpy": np.array, "device": device.array}


def with_each_kind(cases: Cases) -> Callable[[Callable[[Make], None]], Callable[[Make], None]]:
    """A case for arrays of NumPy and one for arrays of the device, which get what makes the arrays."""

    def add(case: Callable[[Make], None]) -> Callable[[Make], None]:
        for kind, make in KINDS.items():
            cases.add_as(f"{case.__name__}-{kind}", lambda make=make: case(make))  # type: ignore[misc]
        return case

    return add


def mine(rank: int, shape: Any, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Small whole numbers, other ones on each rank: sums of them are exact in every dtype."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(count) * 7 + rank * 3) % 5).astype(dtype).reshape(shape)


def everyone(shape: Any, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """What all ranks have, stacked."""
    return np.stack([mine(rank, shape, dtype) for rank in range(hvd.size())])


def numpy_of(array: Any) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = array if isinstance(array, np.ndarray) else array.numpy()
    return values


def same(got: Any, expected: Any, like: Any) -> None:
    """``got`` is an array of the library of ``like``, with the bits of ``expected``."""
    assert type(got) is type(like), (type(got), type(like))
    values = numpy_of(got)
    expected = np.asarray(expected)
    assert values.dtype == expected.dtype
    assert values.shape == expected.shape
    assert values.tobytes() == expected.tobytes(), (values, expected)
