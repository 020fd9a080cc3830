"""Types and layouts beyond those that every table has: 16-bit integers, scalars, nothing at all."""

from __future__ import annotations

import pytest
import torch
from tests.contract.torch.errors import works
from tests.contract.torch.values import INTEGERS, REDUCED, assert_same
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
UNSIGNED = [getattr(torch, "uint16")] if hasattr(torch, "uint16") else []  # noqa: B009 - since PyTorch 2.3
UNKNOWN = [getattr(torch, "bits8")] if hasattr(torch, "bits8") else []  # noqa: B009 - since PyTorch 2.1
MOVED = [
    getattr(torch, name)
    for name in (
        *("uint32", "uint64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
    if hasattr(torch, name)
]
"""No reduction has these."""


@CASES.add
def every_type_can_be_moved() -> None:
    n, me = hvd.size(), hvd.rank()
    for dtype in [*REDUCED, *UNSIGNED]:
        value = torch.full((n, 2), me + 1).to(dtype)
        ranks = torch.arange(1, n + 1)
        assert_same(hvd.allgather(value[:1]), ranks.reshape(n, 1).expand(n, 2).to(dtype))
        assert_same(hvd.broadcast(value, n - 1), torch.full((n, 2), n).to(dtype))
        assert_same(hvd.alltoall(value), ranks.reshape(n, 1).expand(n, 2).to(dtype))


def patterns(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bytes but those of no number, which differ by rank."""
    count = torch.Size(shape).numel() * dtype.itemsize
    made = (torch.arange(count) * 37 + seed * 11) % 113 + 1
    return made.to(torch.uint8).view(dtype).reshape(shape)


def same_bytes(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.device == expected.device
    assert torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@CASES.add
def what_no_reduction_has_is_moved_byte_by_byte() -> None:
    n, me = hvd.size(), hvd.rank()
    for dtype in MOVED:
        for width in (1, 3, 5001):
            value = patterns((n, width), dtype, me)
            everyones = [patterns((n, width), dtype, rank) for rank in range(n)]
            rows = torch.cat([each[: rank + 1] for rank, each in enumerate(everyones)])
            same_bytes(hvd.allgather(value[: me + 1]), rows)
            same_bytes(hvd.broadcast(value, n - 1), everyones[n - 1])
            same_bytes(hvd.alltoall(value), torch.cat([each[me : me + 1] for each in everyones]))
        kept = patterns((5,), dtype, me)
        assert hvd.broadcast_(kept, 0) is kept
        same_bytes(kept, patterns((5,), dtype, 0))
        both = hvd.grouped_allgather([kept[:2], torch.ones(1)])
        same_bytes(both[0], torch.cat([kept[:2]] * n))
        hvd.broadcast_parameters({"moved": value}, 0)
        same_bytes(value, everyones[0])


@CASES.add
def floats_of_8_bits_in_memory_of_the_engine() -> None:
    if not hasattr(torch, "float8_e4m3fn"):
        return
    value = torch.full((2_200_000,), hvd.rank() + 1, dtype=torch.uint8).view(torch.float8_e4m3fn)
    got = hvd.broadcast(value, hvd.size() - 1)
    assert got.dtype == value.dtype
    assert bool((got.view(torch.uint8) == hvd.size()).all())


@CASES.add
def a_reduction_of_what_is_only_moved_is_refused_with_what_to_do() -> None:
    for dtype in MOVED:
        value = patterns((hvd.size(), 2), dtype, 0)
        remedy = "view_as_real" if dtype.is_complex else "bfloat16" if dtype.itemsize == 1 else "int64"
        for call in (
            hvd.allreduce,
            hvd.allreduce_,
            hvd.allreduce_async,
            hvd.reducescatter,
            lambda t: hvd.reduce(t, 0),
            lambda t: hvd.grouped_allreduce([torch.ones(1), t]),
            lambda t: hvd.allreduce(t, op=hvd.Max),
        ):
            with pytest.raises(
                ValueError, match=rf"is not supported in reductions: it is only moved.*{remedy}"
            ):
                call(value)
    works("t.moved")


@CASES.add
def the_sum_of_complex_numbers_is_that_of_their_parts() -> None:
    value = patterns((3, 2), torch.float32, hvd.rank())
    numbers = torch.complex(value, -value)
    total = torch.view_as_complex(hvd.allreduce(torch.view_as_real(numbers), op=hvd.Sum))
    assert_same(total.imag.contiguous(), hvd.allreduce(-value, op=hvd.Sum))


@CASES.add
def a_conjugate_that_is_not_in_memory_is_refused() -> None:
    value = torch.tensor([1 + 2j, 3j])
    for lazy, remedy in ((value.conj(), "resolve_conj"), (torch._neg_view(value), "resolve_neg")):
        assert lazy.is_contiguous()
        for call in (hvd.allgather, lambda tensor: hvd.broadcast(tensor, 0), hvd.alltoall):
            with pytest.raises(ValueError, match=remedy):
                call(lazy)
    assert torch.equal(hvd.broadcast(value.conj().resolve_conj(), 0), torch.tensor([1 - 2j, -3j]))


@CASES.add
def unsigned_integers_of_16_bits_are_reduced() -> None:
    n, me = hvd.size(), hvd.rank()
    for dtype in UNSIGNED:
        value = torch.full((n, 3), 40000 + me).to(dtype)
        for op, want in ((hvd.Min, 40000), (hvd.Max, 40000 + n - 1)):
            assert_same(hvd.allreduce(value, op=op), torch.full((n, 3), want).to(dtype))
        total = 40000 * n + n * (n - 1) // 2
        assert_same(hvd.allreduce(value, op=hvd.Sum), torch.full((n, 3), total % 65536).to(dtype))
        assert_same(hvd.reducescatter(value, op=hvd.Sum), torch.full((1, 3), total % 65536).to(dtype))


@CASES.add
def the_average_of_equal_integers_is_that_integer() -> None:
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        high = min(limits.max // hvd.size(), 500)
        value = torch.arange(0 if limits.min == 0 else -high, high + 1).to(dtype)
        assert_same(hvd.allreduce(value), value)
        assert_same(hvd.grouped_allreduce([value, value])[1], value)


@CASES.add
def unknown_types_and_layouts_are_refused_everywhere() -> None:
    for wrong in [
        *(torch.empty(2, 2, dtype=dtype) for dtype in UNKNOWN),
        torch.eye(2).to_sparse(),
        torch.ones(2, 3).t(),
        torch.ones(2).expand(3, 2),
        torch.ones(4, 4)[:, ::2],
    ]:
        for call in (
            hvd.allreduce,
            hvd.allgather,
            lambda t: hvd.broadcast(t, 0),
            lambda t: hvd.alltoall(t, [0] * hvd.size()),
            hvd.reducescatter,
            lambda t: hvd.grouped_allreduce([torch.ones(1), t]),
            lambda t: hvd.grouped_allgather([torch.ones(1), t]),
            lambda t: hvd.grouped_reducescatter([torch.ones(1), t]),
        ):
            with pytest.raises(ValueError, match=r"is not supported|required to be contiguous"):
                call(wrong)
    works("t.unknown")


@CASES.add
def scalars_and_nothing_at_all() -> None:
    n = hvd.size()
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        scalar = torch.tensor(1).to(dtype)
        assert hvd.allreduce(scalar, op=hvd.Max).shape == ()
        assert hvd.broadcast(scalar, n - 1).shape == ()
        for shape in ((0,), (0, 4), (4, 0), (n, 0, 2)):
            nothing = torch.empty(shape, dtype=dtype)
            assert hvd.allreduce(nothing, op=hvd.Sum).shape == shape
            assert hvd.broadcast_(nothing, 0) is nothing
            assert hvd.allgather(nothing).shape == (shape[0] * n, *shape[1:])
            assert hvd.allgather(hvd.reducescatter(nothing, op=hvd.Sum)).shape == shape
            if shape[0] % n == 0:
                assert_same(hvd.alltoall(nothing), nothing)


@CASES.add
def a_view_of_one_element_or_a_transposed_row_is_contiguous_enough() -> None:
    value = torch.ones(1, 5).t()
    assert value.is_contiguous()
    assert_same(hvd.allreduce(value, op=hvd.Sum), torch.full((5, 1), float(hvd.size())))
    assert hvd.allgather(value).shape == (5 * hvd.size(), 1)


@CASES.add
def shapes_may_change_under_one_name() -> None:
    n = hvd.size()
    for shape in ((4,), (2, 2), (4,), (0,), (1, 4)):
        assert_same(hvd.allreduce(torch.ones(shape), name="t.shape", op=hvd.Sum), torch.full(shape, float(n)))
        assert hvd.allgather(torch.ones(shape), name="t.shape").shape == (n * shape[0], *shape[1:])
    for dtype in (torch.float32, torch.int32, torch.float64):
        assert hvd.allreduce(torch.ones(2, dtype=dtype), name="t.shape", op=hvd.Sum).dtype == dtype


@CASES.add
def averages_whose_sum_fits_no_float16() -> None:
    """By every way that a size takes, blocking and not, on any hosts."""
    for count in (7, 20_000, 700_001):
        full = torch.full((count,), 49152.0, dtype=torch.float16)
        name = f"wide.{count}"
        for _ in range(2):  # the second is known to all, and needs no negotiation
            assert torch.equal(hvd.allreduce(full, name=name), full)
        assert torch.equal(hvd.synchronize(hvd.allreduce_async(full, name=f"{name}.later")), full)
        for reduced in hvd.grouped_allreduce([full, full], name=f"{name}.group"):
            assert torch.equal(reduced, full)
        assert bool((hvd.reducescatter(full, name=f"{name}.rows") == 49152.0).all())


@CASES.add
def averages_of_half_types_lose_no_range() -> None:
    """Neither where sums are near the largest value, nor where parts of averages would be 0."""
    for dtype, value in ((torch.float16, 2.0**15), (torch.float16, 2.0**-20), (torch.bfloat16, 2.0**124)):
        full = torch.full((20_000,), value, dtype=dtype)
        for reduced in (hvd.allreduce(full), hvd.reducescatter(full)):
            torch.testing.assert_close(reduced, full[: len(reduced)], rtol=0.01, atol=2.0**-23)


@CASES.add
def what_lies_negated_in_memory_is_refused() -> None:
    negated = torch.tensor([1 + 2j]).conj().imag  # -2, of which the memory says 2
    assert negated.is_contiguous()
    for call in (hvd.allreduce, hvd.allgather, lambda tensor: hvd.broadcast(tensor, 0), hvd.allreduce_async_):
        with pytest.raises(ValueError, match="resolve_neg"):
            call(negated)
    assert_same(hvd.allreduce(negated.resolve_neg()), torch.tensor([-2.0]))


@CASES.add
def a_tensor_that_comes_twice_in_a_group_is_reduced_once() -> None:
    total = float(hvd.size() * (hvd.size() + 1) // 2)
    for count in (8, 1000, 100_000, 600_000):
        for wait in (
            hvd.grouped_allreduce_,
            lambda *a, **k: hvd.synchronize(hvd.grouped_allreduce_async_(*a, **k)),
        ):
            twice, once = torch.full((count,), hvd.rank() + 1.0), torch.ones(3)
            results = wait([twice, once, twice, torch.empty(0), torch.empty(0)], op=hvd.Sum)
            assert results[0] is twice
            assert results[2] is twice
            assert_same(twice, torch.full((count,), total))
            assert_same(once, torch.full((3,), float(hvd.size())))


@CASES.add
def results_of_a_group_that_overlap_are_refused() -> None:
    whole = torch.arange(1000.0)
    for first, second in ((whole[:600], whole[400:]), (whole, whole[:10]), (whole[10:20], whole)):
        for call in (hvd.grouped_allreduce_, hvd.grouped_allreduce_async_):
            with pytest.raises(ValueError, match="Tensors 1 and 2 of the group overlap in memory"):
                call([torch.ones(1), first, second], op=hvd.Sum)
    assert_same(whole, torch.arange(1000.0))
    doubled = hvd.grouped_allreduce([whole[:600], whole[400:]], op=hvd.Sum)  # inputs may
    assert_same(doubled[1], whole[400:] * hvd.size())
    works()
