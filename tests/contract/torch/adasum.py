"""Adasum: sums of what is orthogonal, means of what is parallel, tensor by tensor."""

from __future__ import annotations

import pytest
import torch
from tests.contract.torch.errors import works
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# Just above the number of ranks up to half a million; most do not divide.
LENGTHS = [5, 16, 17, 33, 1023, 4097, 65_535, 500_009]


def runs() -> bool:
    """Whether the number of ranks is a power of two, which Adasum needs."""
    return hvd.size() & (hvd.size() - 1) == 0


def combined(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Adasum in float64: pairs of ranks, then pairs of pairs."""
    level = [vector.double() for vector in vectors]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [pair(a, b) for a, b in pairs]
    return level[0]


def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def kept(own: torch.Tensor) -> float:
        norm = float(own @ own)
        return 1.0 if norm < 1.5e-154 else 1.0 - float(a @ b) / (2.0 * norm)

    a, b = a.flatten(), b.flatten()
    return kept(a) * a + kept(b) * b


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a hundred times the precision of the type, of the norm."""
    assert got.dtype in DTYPES
    assert bool(torch.isfinite(got).all())
    norm = float(expected.double().norm())
    error = float((got.double().flatten() - expected.flatten()).norm())
    assert error <= 100 * torch.finfo(got.dtype).eps * norm, f"{error} of {norm} in {got.dtype}"


def everyones(length: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, generator=generator).to(dtype) for _ in range(hvd.size())]


@CASES.add
def any_vectors_many_at_once() -> None:
    """Each tensor is a vector of its own, also when they travel together."""
    if not runs():
        return
    for dtype in DTYPES:
        inputs = [everyones(length, dtype, seed) for seed, length in enumerate(LENGTHS)]
        handles = [
            hvd.allreduce_async(vectors[hvd.rank()], name=f"ad.{dtype}.{i}", op=hvd.Adasum)
            for i, vectors in enumerate(inputs)
        ]
        grouped = hvd.grouped_allreduce([vectors[hvd.rank()] for vectors in inputs], op=hvd.Adasum)
        for vectors, handle, member in zip(inputs, handles, grouped, strict=True):
            result = hvd.synchronize(handle)
            assert_close(result, combined(vectors))
            assert_same(member, result)


@CASES.add
def orthogonal_vectors_are_added() -> None:
    if not runs():
        return
    for dtype in DTYPES:
        for length in (5, 100, 4097):
            generator = torch.Generator().manual_seed(length)
            basis = torch.linalg.qr(
                torch.randn(length, hvd.size(), generator=generator, dtype=torch.float64)
            ).Q
            own = basis[:, hvd.rank()].to(dtype).contiguous()
            assert_close(hvd.allreduce(own, op=hvd.Adasum), basis.sum(1))


@CASES.add
def parallel_vectors_are_averaged() -> None:
    if not runs():
        return
    for dtype in DTYPES:
        for length in (7, 5000):
            direction = everyones(length, torch.float64, 3)[0]
            scales = [0.5 + rank for rank in range(hvd.size())]
            own = (direction * scales[hvd.rank()]).to(dtype)
            mean = direction * (sum(scales) / len(scales))
            assert_close(hvd.allreduce(own, op=hvd.Adasum), mean)


@CASES.add
def tiny_and_huge_vectors_stay_finite() -> None:
    if not runs():
        return
    for dtype in (torch.float32, torch.float64):
        limits = torch.finfo(dtype)
        for scale in (limits.tiny, limits.tiny * 4, limits.max**0.5 / 100):
            own = torch.full((33,), 1.0, dtype=dtype) * scale
            got = hvd.allreduce(own, op=hvd.Adasum)
            assert bool(torch.isfinite(got).all())
            if scale > 1:
                assert torch.allclose(got, own, rtol=1e-4)


@CASES.add
def zeros_and_nothing() -> None:
    if not runs():
        return
    for dtype in DTYPES:
        assert_same(hvd.allreduce(torch.zeros(9, dtype=dtype), op=hvd.Adasum), torch.zeros(9, dtype=dtype))
        assert hvd.allreduce(torch.zeros(0, dtype=dtype), op=hvd.Adasum).shape == (0,)
        only = torch.full((3,), 2.0 if hvd.rank() == 0 else 0.0, dtype=dtype)
        assert_same(hvd.allreduce(only, op=hvd.Adasum), torch.full((3,), 2.0, dtype=dtype))


@CASES.add
def in_place_and_shapes() -> None:
    if not runs():
        return
    vectors = everyones(24, torch.float32, 9)
    own = vectors[hvd.rank()].reshape(2, 3, 4).clone()
    assert hvd.allreduce_(own, op=hvd.Adasum) is own
    assert_close(own, combined(vectors))
    scalar = torch.tensor(3.0)
    assert hvd.allreduce(scalar, op=hvd.Adasum).item() == 3.0


@CASES.add
def every_rank_has_the_same_bits() -> None:
    if not runs():
        return
    result = hvd.allreduce(everyones(10_007, torch.float32, 1)[hvd.rank()], op=hvd.Adasum)
    rows = hvd.allgather(result.reshape(1, -1))
    assert all(torch.equal(row, rows[0]) for row in rows)


@CASES.add
def what_adasum_does_not_support() -> None:
    if not runs():
        for call in (
            lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum),
            lambda: hvd.grouped_allreduce_async([torch.ones(2)], op=hvd.Adasum),
        ):
            with pytest.raises(NotImplementedError, match="power of two"):
                call()
    else:
        for dtype in (torch.int32, torch.bool):
            with pytest.raises(ValueError, match="not supported"):
                hvd.allreduce(torch.ones(2, dtype=dtype), op=hvd.Adasum)
    works("ad.refused")


@CASES.add
def the_gradient_is_adasum_of_the_gradients() -> None:
    if not runs():
        return
    x = torch.ones(4, requires_grad=True)
    hvd.allreduce(x, op=hvd.Adasum).sum().backward()
    assert_same(x.grad, torch.ones(4), 1e-6)


@CASES.add
def a_joined_rank_counts_as_a_zero_vector() -> None:
    if not runs() or hvd.size() == 1:
        return
    vectors = everyones(50, torch.float32, 4)
    if hvd.rank() == 0:
        hvd.join()
    else:
        result = hvd.allreduce(vectors[hvd.rank()], name="ad.join", op=hvd.Adasum)
        assert_close(result, combined([torch.zeros(50), *vectors[1:]]))
        hvd.join()
    works()
