"""Inputs that depend on the rank, and what collectives must make of them, from plain arithmetic."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
REDUCED = [*INTEGERS, *FLOATS, torch.bool]
MOVED = [*REDUCED, torch.int16]
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
    """What this rank contributes."""
    return tensor(integers(hvd.rank(), shape, dtype, op), dtype)


@functools.lru_cache(maxsize=16)
def reduced(shape: Shape, dtype: torch.dtype, op: int) -> torch.Tensor:
    """What the reduction over all ranks gives."""
    size = hvd.size()
    everyone = np.stack([integers(rank, shape, dtype, op) for rank in range(size)])
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


def assert_reduced(got: torch.Tensor, shape: Shape, dtype: torch.dtype, op: int) -> None:
    """``got`` is the reduction of everybody's ``mine``."""
    exact = op in (hvd.Min, hvd.Max, hvd.Sum) and dtype.is_floating_point
    assert_same(got, reduced(shape, dtype, op), 0.0 if exact else ROUNDING.get(dtype, 0.0))
