"""Inputs that depend on the rank, and what collectives must make of them, from plain arithmetic."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator

import numpy as np
import torch

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
REDUCED = [*INTEGERS, *FLOATS, torch.bool]
OPS = {
    "average": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}
Shape = tuple[int, ...]
SHAPES: list[Shape] = [(), (0,), (1,), (17,), (3, 0, 2), (17, 17), (5, 7, 3)]

# Inputs are small integers, exact in every type. What is rounded is the scaling (once, in the type itself)
# and, in the half types, each partial result.
ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}


def large(dtype: torch.dtype) -> Shape:
    """A shape of a bit more than 1 MiB that no power of two divides."""
    return (1_153_433 // dtype.itemsize // 2 * 2 + 1,)


@functools.lru_cache(maxsize=64)
def integers(rank: int, shape: Shape, dtype: torch.dtype, op: int) -> np.ndarray:
    """What ``rank`` contributes, as int64."""
    count = math.prod(shape)
    mixed = np.arange(count, dtype=np.int64) * 7 + rank * 13
    if dtype == torch.bool:
        values = mixed % 3 % 2
    elif op == hvd.Product:
        values = mixed % 5 - 2
    else:
        values = mixed % 23 - 11
    if dtype == torch.uint8:
        values = np.abs(values)
    return values.reshape(shape)


def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values).to(dtype)


def mine(shape: Shape, dtype: torch.dtype, op: int = hvd.Sum) -> torch.Tensor:
    """What this rank contributes, in memory of its own."""
    return given(hvd.rank(), shape, dtype, op).clone()


def given(rank: int, shape: Shape, dtype: torch.dtype, op: int) -> torch.Tensor:
    """What ``rank`` contributes. Not to be written to."""
    return _given(rank, shape, dtype, op, torch.get_default_device())


@functools.lru_cache(maxsize=64)
def _given(rank: int, shape: Shape, dtype: torch.dtype, op: int, _: torch.device) -> torch.Tensor:
    return tensor(integers(rank, shape, dtype, op), dtype)


def reduced(
    shape: Shape, dtype: torch.dtype, op: int, process_set: hvd.ProcessSet | None = None
) -> torch.Tensor:
    """What the reduction over all ranks, or over those of ``process_set``, gives."""
    ranks = (process_set or hvd.global_process_set).ranks
    assert ranks is not None
    return _reduced(shape, dtype, op, tuple(ranks))


@functools.lru_cache(maxsize=16)
def _reduced(shape: Shape, dtype: torch.dtype, op: int, ranks: tuple[int, ...]) -> torch.Tensor:
    size = len(ranks)
    everyone = np.stack([integers(rank, shape, dtype, op) for rank in ranks])
    if dtype == torch.bool:
        # Sum and Max are "or", the others "and".
        combined = np.any if op in (hvd.Sum, hvd.Max) else np.all
        return tensor(np.asarray(combined(everyone, axis=0)), dtype)
    if op == hvd.Average:
        # The factor is one over the size, in double; integers are truncated toward zero.
        exact = everyone.sum(0) * (1.0 / size)
        return tensor(exact if dtype.is_floating_point else np.trunc(exact), dtype)
    combine: dict[int, np.ufunc] = {
        hvd.Sum: np.add,
        hvd.Min: np.minimum,
        hvd.Max: np.maximum,
        hvd.Product: np.multiply,
    }
    return tensor(combine[op].reduce(everyone, axis=0), dtype)


def assert_same(got: torch.Tensor | None, expected: torch.Tensor, rtol: float = 0.0) -> None:
    """Equal shape, dtype and values; ``rtol`` for floating types."""
    assert got is not None
    assert got.shape == expected.shape, f"shape {list(got.shape)}, expected {list(expected.shape)}"
    assert got.dtype == expected.dtype, f"dtype {got.dtype}, expected {expected.dtype}"
    if rtol == 0.0 or not got.dtype.is_floating_point:
        equal = torch.equal(got, expected)
    else:
        equal = torch.allclose(got.double(), expected.double(), rtol=rtol, atol=1e-8)
    if not equal:
        wrong = (got != expected).flatten().nonzero().flatten()
        first = int(wrong[0]) if len(wrong) else 0
        raise AssertionError(
            f"{len(wrong)} of {got.numel()} elements of {got.dtype} {list(got.shape)} differ; "
            f"element {first}: {got.flatten()[first]} instead of {expected.flatten()[first]}"
        )


def assert_reduced(
    got: torch.Tensor, shape: Shape, dtype: torch.dtype, op: int, process_set: hvd.ProcessSet | None = None
) -> None:
    """``got`` is the reduction of the members' ``mine``."""
    assert_same(got, reduced(shape, dtype, op, process_set), _tolerance(dtype, op))


def assert_scattered(
    got: torch.Tensor, shape: Shape, dtype: torch.dtype, op: int, process_set: hvd.ProcessSet | None = None
) -> None:
    """``got`` is this rank's share of the rows of the reduction of the members' ``mine``."""
    members = process_set or hvd.global_process_set
    size, me = members.size(), members.rank()
    assert size is not None
    assert me is not None
    rows, more = divmod(shape[0], size)
    share = reduced(shape, dtype, op, process_set).narrow(0, me * rows + min(me, more), rows + (me < more))
    assert_same(got, share, _tolerance(dtype, op))


def _tolerance(dtype: torch.dtype, op: int) -> float:
    exact = op in (hvd.Min, hvd.Max, hvd.Sum) and dtype.is_floating_point
    return 0.0 if exact else ROUNDING.get(dtype, 0.0)


@contextlib.contextmanager
def even_and_odd() -> Iterator[hvd.ProcessSet]:
    """The set of the ranks with this rank's parity, while both sets exist. At least two ranks."""
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    odd = hvd.add_process_set(range(1, hvd.size(), 2))
    try:
        yield odd if hvd.rank() % 2 else even
    finally:
        assert hvd.remove_process_set(odd)
        assert hvd.remove_process_set(even)
