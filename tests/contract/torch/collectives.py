"""Allreduce, allgather, broadcast, barrier: every operator, dtype, shape and form."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.contract.torch.values import (
    FLOATS,
    INTEGERS,
    OPS,
    REDUCED,
    SHAPES,
    Shape,
    assert_reduced,
    assert_same,
    given,
    large,
    mine,
)
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()

Form = Callable[[Sequence[torch.Tensor], int], Sequence[torch.Tensor]]


def untouched(call: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """An out-of-place call, with a check that it left its input alone and returned something new."""

    def checked(value: torch.Tensor) -> torch.Tensor:
        before = value.clone()
        result = call(value)
        assert result is not value
        assert torch.equal(value, before)
        return result

    return checked


def in_place(call: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def checked(value: torch.Tensor) -> torch.Tensor:
        assert call(value) is value
        return value

    return checked


def all_at_once(submit: Callable[[torch.Tensor], int], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    handles = [submit(value) for value in values]
    return [hvd.synchronize(handle) for handle in handles]


def same_objects(results: Any, values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    assert isinstance(results, tuple)
    assert all(result is value for result, value in zip(results, values, strict=True))
    return values


FORMS: dict[str, Form] = {
    "blocking": lambda xs, op: [untouched(lambda x: hvd.allreduce(x, op=op))(x) for x in xs],
    "in_place": lambda xs, op: [in_place(lambda x: hvd.allreduce_(x, op=op))(x) for x in xs],
    "async": lambda xs, op: all_at_once(lambda x: hvd.allreduce_async(x, op=op), xs),
    "async_in_place": lambda xs, op: all_at_once(lambda x: hvd.allreduce_async_(x, op=op), xs),
    "grouped": lambda xs, op: hvd.grouped_allreduce(list(xs), op=op),
    "grouped_in_place": lambda xs, op: same_objects(hvd.grouped_allreduce_(xs, op=op), xs),
    "grouped_async": lambda xs, op: hvd.synchronize(hvd.grouped_allreduce_async(list(xs), op=op)),
    "grouped_async_in_place": lambda xs, op: same_objects(
        hvd.synchronize(hvd.grouped_allreduce_async_(list(xs), op=op)), xs
    ),
}


def allreduce_case(form: Form, op: int, dtype: torch.dtype) -> None:
    shapes: list[Shape] = [*SHAPES, large(dtype)]
    results = form([mine(shape, dtype, op) for shape in shapes], op)
    for shape, result in zip(shapes, results, strict=True):
        assert_reduced(result, shape, dtype, op)


for op_name, op in OPS.items():
    for dtype in REDUCED:
        for form_name, form in FORMS.items():
            CASES.add_as(
                f"allreduce_{form_name}_{op_name}_{str(dtype).removeprefix('torch.')}",
                functools.partial(allreduce_case, form, op, dtype),
            )


@CASES.add
def a_group_of_mixed_dtypes() -> None:
    values = [mine((17, index), dtype) for index, dtype in enumerate(REDUCED)]
    for index, (dtype, result) in enumerate(
        zip(REDUCED, hvd.grouped_allreduce(values, name="mixed", op=hvd.Sum), strict=True)
    ):
        assert_reduced(result, (17, index), dtype, hvd.Sum)


@CASES.add
def many_named_operations_in_different_orders() -> None:
    """TensorFlow and autograd submit in any order: names pair the operations, and they may be fused."""
    numbers = list(range(60))
    if hvd.rank() % 2:
        numbers.reverse()
    kinds = {number: (REDUCED[number % len(REDUCED)], (1 + number * 5, 3)) for number in numbers}
    handles = {
        number: hvd.allreduce_async(mine(shape, dtype), name=f"many.{number}", op=hvd.Sum)
        for number, (dtype, shape) in kinds.items()
    }
    for number in sorted(numbers):
        dtype, shape = kinds[number]
        assert_reduced(hvd.synchronize(handles[number]), shape, dtype, hvd.Sum)


@CASES.add
def waiting_in_different_orders() -> None:
    handles = [hvd.allreduce_async(mine((9,), torch.float32), name=f"w.{i}", op=hvd.Sum) for i in range(20)]
    order = range(20) if hvd.rank() % 2 else range(19, -1, -1)
    for number in order:
        assert_reduced(hvd.synchronize(handles[number]), (9,), torch.float32, hvd.Sum)


@CASES.add
def a_name_may_be_used_again_after_synchronize() -> None:
    for step in range(50):
        assert_reduced(
            hvd.allreduce(mine((step, 2), torch.float32), name="again", op=hvd.Sum),
            (step, 2),
            torch.float32,
            hvd.Sum,
        )


@CASES.add
def one_name_for_different_kinds_of_operation() -> None:
    value = mine((4,), torch.float32)
    handles = [
        hvd.allreduce_async(value, name="shared", op=hvd.Sum),
        hvd.allgather_async(value, name="shared"),
        hvd.broadcast_async(value, 0, name="shared"),
        hvd.grouped_allreduce_async([value], name="shared", op=hvd.Sum),
        hvd.grouped_allgather_async([value], name="shared"),
    ]
    results = [hvd.synchronize(handle) for handle in handles]
    assert_reduced(results[0], (4,), torch.float32, hvd.Sum)
    assert_reduced(results[3][0], (4,), torch.float32, hvd.Sum)
    assert results[1].shape == (4 * hvd.size(),)


@CASES.add
def fresh_handles_are_not_all_done() -> None:
    values = [mine((1000,), torch.float32) for _ in range(20)]
    handles = [hvd.allreduce_async(value, op=hvd.Sum) for value in values]
    polled = [hvd.poll(handle) for handle in handles]
    for handle in handles:
        assert_reduced(hvd.synchronize(handle), (1000,), torch.float32, hvd.Sum)
    assert not all(polled), "every poll right after submission said done"


@CASES.add
def polling_reaches_the_end() -> None:
    handle = hvd.allreduce_async(mine((100,), torch.float32), op=hvd.Sum)
    limit = time.monotonic() + 10
    while not hvd.poll(handle):
        assert time.monotonic() < limit
    assert_reduced(hvd.synchronize(handle), (100,), torch.float32, hvd.Sum)


@CASES.add
def slices_with_a_storage_offset() -> None:
    whole = torch.stack([torch.full((17,), float(i)) for i in range(hvd.size() + 1)])
    result = hvd.allreduce(whole[hvd.rank() + 1], op=hvd.Max)
    assert_same(result, torch.full((17,), float(hvd.size())))
    hvd.allreduce_(whole[0, 3:9], op=hvd.Sum)
    hvd.broadcast_(whole[1, :5], 0)


@CASES.add
def integer_sums_and_products_wrap() -> None:
    for dtype in INTEGERS:
        top = torch.iinfo(dtype).max
        total = hvd.allreduce(torch.tensor([top, top - 1], dtype=dtype), op=hvd.Sum)
        # One after another in the type itself: torch wraps as well.
        expected = torch.zeros(2, dtype=dtype)
        for _ in range(hvd.size()):
            expected += torch.tensor([top, top - 1], dtype=dtype)
        assert_same(total, expected)
        product = hvd.allreduce(torch.tensor([top], dtype=dtype), op=hvd.Product)
        expected = torch.ones(1, dtype=dtype)
        for _ in range(hvd.size()):
            expected *= torch.tensor([top], dtype=dtype)
        assert_same(product, expected)


@CASES.add
def integer_averages_truncate_toward_zero() -> None:
    # The sum is -7 and +7 whatever the size is.
    first = hvd.rank() == 0
    value = torch.tensor([-7, 7] if first else [0, 0], dtype=torch.int32)
    factor = 1.0 / hvd.size()
    assert hvd.allreduce(value).tolist() == [int(-7 * factor), int(7 * factor)]


@CASES.add
def integer_averages_are_exact_where_sums_are_not() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        value = torch.tensor([limits.max, limits.min, limits.max // 2 + 1], dtype=dtype).repeat(hvd.size())
        assert_same(hvd.allreduce(value), value)
        assert_same(hvd.grouped_allreduce([value, value])[1], value)
        assert_same(hvd.reduce(value, root_rank=0), value)
        assert_same(hvd.reducescatter(value), value[:3])
        assert_same(hvd.allreduce_(value.clone()), value)


def scaled_case(dtype: torch.dtype, op: int, grouped: bool) -> None:
    """prescale·x and postscale·result are rounded (integers: truncated) to the type, in float32 for half
    types."""
    value = torch.arange(-40, 40).to(dtype)
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32}
    for factor in (0.5, 0.3, 2.0):
        for which in ("prescale_factor", "postscale_factor"):
            options: dict[str, Any] = {which: factor, "op": op}
            reduce_one = (lambda x, **o: hvd.grouped_allreduce([x], **o)[0]) if grouped else hvd.allreduce
            got = reduce_one(value, **options)
            arithmetic = wide.get(dtype, torch.float64)
            times = hvd.size() if op == hvd.Sum else 1

            def scale(x: torch.Tensor, f: float = factor, a: torch.dtype = arithmetic) -> torch.Tensor:
                return (x.to(a) * torch.tensor(f, dtype=a)).to(dtype)

            if which == "prescale_factor":
                expected = (scale(value).to(torch.float64) * times).to(dtype)
            else:
                expected = scale((value.to(torch.float64) * times).to(dtype))
            rounding = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float32: 1e-6}.get(dtype, 1e-12)
            assert_same(got, expected, rounding)


for dtype in [torch.int32, torch.int64, *FLOATS]:
    for grouped in (False, True):
        CASES.add_as(
            f"scaled_{'group' if grouped else 'sum'}_{str(dtype).removeprefix('torch.')}",
            functools.partial(scaled_case, dtype, hvd.Sum, grouped),
        )


@CASES.add
def factors_apply_to_min_and_max_too() -> None:
    value = mine((5,), torch.float32)
    low = hvd.allreduce(value, op=hvd.Min, prescale_factor=2.0, postscale_factor=0.25)
    assert_same(low, hvd.allreduce(value, op=hvd.Min) * 0.5)


@CASES.add
def factors_that_are_no_number_agree() -> None:
    for _ in range(3):  # also with what ranks remember
        got = hvd.allreduce(torch.ones(3), name="c.nan", prescale_factor=float("nan"))
        assert bool(got.isnan().all())
        handle = hvd.grouped_allreduce_async([torch.ones(2)], name="c.nan", postscale_factor=float("nan"))
        assert bool(hvd.synchronize(handle)[0].isnan().all())


@CASES.add
def results_have_the_same_bits_on_all_ranks_and_runs() -> None:
    generator = torch.Generator().manual_seed(hvd.rank())
    for count in (5, 1000, 300_001):
        value = torch.randn(count, generator=generator)
        first = hvd.allreduce(value)
        others = hvd.allgather(first.reshape(1, -1))
        assert all(torch.equal(other, first) for other in others)
        handles = [hvd.allreduce_async(v) for v in (value[:3].clone(), value, value[:77].clone())]
        assert torch.equal([hvd.synchronize(h) for h in handles][1], first)


@CASES.add
def leaves_that_require_grad_are_written_in_place() -> None:
    leaf = torch.nn.Parameter(torch.ones(3))
    assert hvd.allreduce_(leaf, op=hvd.Sum) is leaf
    assert leaf.tolist() == [float(hvd.size())] * 3
    hvd.broadcast_(leaf, 0)


@CASES.add
def compression_halves_what_travels() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        value = torch.full((5,), 2.0, dtype=dtype)
        assert_same(hvd.allreduce(value, compression=hvd.Compression.fp16, op=hvd.Sum), value * hvd.size())
        group = hvd.grouped_allreduce([value], compression=hvd.Compression.fp16, op=hvd.Sum)
        assert_same(group[0], value * hvd.size())


@CASES.add
def sparse_allreduce_equals_the_dense_one() -> None:
    torch.manual_seed(hvd.rank())
    starts = []
    for number in range(20):
        rows = 10 + number
        dense = torch.randint(-100, 100, (rows, 3)) * (torch.rand(rows, 1) < 0.4).float()
        if number == hvd.rank():
            dense.zero_()
        sparse = dense.to_sparse(1)
        op = hvd.Average if number % 2 else hvd.Sum
        starts.append((hvd.sparse_allreduce_async(sparse, f"sparse.{number}", op), dense, op))
    for wait, dense, op in starts:
        result = wait()
        assert result.shape == dense.shape
        # The average divides before it adds: where values cancel, only the absolute error is small.
        assert torch.allclose(result.to_dense(), hvd.allreduce(dense, op=op), rtol=1e-6, atol=1e-5)


# -- allgather
# ------------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[int], int]] = {
    "equal": lambda rank: 17,
    "uneven": lambda rank: [12, 81, 3, 29][rank],
    "empty_first": lambda rank: 5 * rank,
    "only_last": lambda rank: 4 if rank == hvd.size() - 1 else 0,
    "empty": lambda rank: 0,
    "large": lambda rank: 60_000 + 1001 * rank,
}
GATHERS: dict[str, Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]] = {
    "blocking": lambda xs: [untouched(hvd.allgather)(x) for x in xs],
    "async": lambda xs: all_at_once(hvd.allgather_async, xs),
    "grouped": lambda xs: hvd.grouped_allgather(xs),
    "grouped_async": lambda xs: hvd.synchronize(hvd.grouped_allgather_async(xs)),
}


def allgather_case(gather: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]], rows_name: str) -> None:
    rows = ROWS[rows_name]
    tails: list[Shape] = [(), (3,), (2, 5)] if rows_name != "large" else [(7,)]

    def block(rank: int, tail: Shape, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows(rank), *tail), rank + 1).to(dtype)

    kinds = [(tail, dtype) for dtype in REDUCED for tail in tails]
    results = gather([block(hvd.rank(), tail, dtype) for tail, dtype in kinds])
    assert len(results) == len(kinds)
    for (tail, dtype), result in zip(kinds, results, strict=True):
        assert_same(result, torch.cat([block(rank, tail, dtype) for rank in range(hvd.size())]))


for gather_name, gather in GATHERS.items():
    for rows_name in ROWS:
        CASES.add_as(
            f"allgather_{gather_name}_{rows_name}_rows", functools.partial(allgather_case, gather, rows_name)
        )


@CASES.add
def rows_without_elements_are_counted() -> None:
    result = hvd.allgather(torch.ones(hvd.rank() + 1, 0))
    assert result.shape == (hvd.size() * (hvd.size() + 1) // 2, 0)


# -- broadcast
# ------------------------------------------------------------------------------------------------

BROADCASTS: dict[str, Callable[[list[torch.Tensor], int], list[torch.Tensor]]] = {
    "blocking": lambda xs, root: [untouched(lambda x: hvd.broadcast(x, root))(x) for x in xs],
    "in_place": lambda xs, root: [in_place(lambda x: hvd.broadcast_(x, root))(x) for x in xs],
    "async": lambda xs, root: all_at_once(lambda x: hvd.broadcast_async(x, root), xs),
    "async_in_place": lambda xs, root: all_at_once(lambda x: hvd.broadcast_async_(x, root), xs),
}


def broadcast_case(
    broadcast: Callable[[list[torch.Tensor], int], list[torch.Tensor]], dtype: torch.dtype
) -> None:
    shapes: list[Shape] = [*SHAPES, large(dtype)]
    for root in range(hvd.size()):
        results = broadcast([mine(shape, dtype) for shape in shapes], root)
        for shape, result in zip(shapes, results, strict=True):
            assert_same(result, given(root, shape, dtype, hvd.Sum))


for broadcast_name, broadcast in BROADCASTS.items():
    for dtype in REDUCED:
        CASES.add_as(
            f"broadcast_{broadcast_name}_{str(dtype).removeprefix('torch.')}",
            functools.partial(broadcast_case, broadcast, dtype),
        )


# -- barrier
# --------------------------------------------------------------------------------------------------


@CASES.add
def a_barrier_waits_for_the_last_rank() -> None:
    hvd.barrier()
    if hvd.rank() == 0:
        time.sleep(0.1)  # being late is what this case is about
    came = time.monotonic()
    hvd.barrier()
    left = time.monotonic()
    assert left >= max(hvd.allgather_object(came))


@CASES.add
def a_barrier_among_pending_operations() -> None:
    value = mine((50,), torch.float32)
    handles = [
        hvd.broadcast_async(value, hvd.size() - 1, name="pending.b"),
        hvd.allgather_async(value, name="pending.g1"),
        hvd.allgather_async(value, name="pending.g2"),
        hvd.allreduce_async(value, name="pending.r", op=hvd.Sum),
    ]
    hvd.barrier()
    hvd.barrier()
    results = [hvd.synchronize(handle) for handle in handles]
    assert_reduced(results[3], (50,), torch.float32, hvd.Sum)


@CASES.add
def handles_nobody_waits_for_are_harmless() -> None:
    for number in range(30):
        hvd.allreduce_async(mine((number + 1,), torch.float32), name=f"abandoned.{number}")
    hvd.barrier()
    assert_reduced(hvd.allreduce(mine((3,), torch.int64), op=hvd.Sum), (3,), torch.int64, hvd.Sum)


@CASES.add
def large_results_have_memory_of_their_own() -> None:
    """They lie in memory that is used again: by later results, never by two at once."""
    n, count = hvd.size(), 2_200_000
    value = torch.full((count,), float(hvd.rank() + 1))
    kept = [hvd.allreduce(value * k, op=hvd.Sum, name=f"large.{k}") for k in (1, 2)]
    parts = [hvd.reducescatter(value * k, op=hvd.Sum, name=f"large.part.{k}") for k in (3, 4)]
    total = n * (n + 1) / 2
    for k, result in enumerate([*kept, *parts], 1):
        assert bool((result == k * total).all())
    del kept, result
    again = hvd.allreduce(value, op=hvd.Sum, name="large.again")
    again += 1
    assert bool((again == total + 1).all())
    assert [bool((part == k * total).all()) for k, part in enumerate(parts, 3)] == [True, True]
