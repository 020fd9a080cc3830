"""Reduce to one rank: every dtype, form and root; what the others keep, gradients, errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.contract.torch.errors import disagree, duplicate_case, works
from tests.contract.torch.values import (
    FLOATS,
    OPS,
    REDUCED,
    SHAPES,
    Shape,
    assert_reduced,
    assert_same,
    even_and_odd,
    large,
    mine,
)
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()

Form = Callable[[Sequence[torch.Tensor], dict[str, Any]], Sequence[torch.Tensor]]


def at_once(values: Sequence[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    handles = [hvd.reduce_async(value, **options) for value in values]
    return [hvd.synchronize(handle) for handle in handles]


def at_once_in_place(values: Sequence[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    handles = [hvd.reduce_async_(value, **options) for value in values]
    return [hvd.synchronize(handle) for handle in handles]


FORMS: dict[str, Form] = {
    "reduce": lambda xs, options: [hvd.reduce(x, **options) for x in xs],
    "reduce_async": at_once,
    "grouped_reduce": lambda xs, options: hvd.grouped_reduce(list(xs), **options),
    "grouped_reduce_async": lambda xs, options: hvd.synchronize(
        hvd.grouped_reduce_async(list(xs), **options)
    ),
}
IN_PLACE: dict[str, Form] = {
    "reduce_": lambda xs, options: [hvd.reduce_(x, **options) for x in xs],
    "reduce_async_": at_once_in_place,
    "grouped_reduce_": lambda xs, options: hvd.grouped_reduce_(list(xs), **options),
    "grouped_reduce_async_": lambda xs, options: hvd.synchronize(
        hvd.grouped_reduce_async_(list(xs), **options)
    ),
}


def assert_on_the_root(
    results: Sequence[torch.Tensor],
    shapes: Sequence[Shape],
    dtype: torch.dtype,
    op: int,
    root: int,
    process_set: hvd.ProcessSet | None = None,
) -> None:
    """Elsewhere each is what this rank gave."""
    for shape, result in zip(shapes, results, strict=True):
        if hvd.rank() == root:
            assert_reduced(result, shape, dtype, op, process_set)
        else:
            assert_same(result, mine(shape, dtype, op))


def values_case(op: int, dtype: torch.dtype) -> None:
    shapes = [*SHAPES, large(dtype)]
    for number, (form_name, form) in enumerate({**FORMS, **IN_PLACE}.items()):
        root = number % hvd.size()
        values = [mine(shape, dtype, op) for shape in shapes]
        results = form(values, {"op": op, "root_rank": root})
        assert_on_the_root(results, shapes, dtype, op, root)
        for shape, value, result in zip(shapes, values, results, strict=True):
            if form_name in IN_PLACE:
                assert result is value
            else:
                assert_same(value, mine(shape, dtype, op))
                assert not len(shape) or not result.numel() or result.data_ptr() != value.data_ptr()


for op_name, op in OPS.items():
    for dtype in REDUCED:
        CASES.add_as(
            f"{op_name}_{str(dtype).removeprefix('torch.')}", functools.partial(values_case, op, dtype)
        )


@CASES.add
def the_bits_are_those_of_an_allreduce() -> None:
    generator = torch.Generator().manual_seed(hvd.rank())
    for count in (3, 1000, 100_001, 1_500_007):
        value = torch.randn(count, generator=generator)
        root = count % hvd.size()
        how: dict[str, Any] = {"prescale_factor": 0.3, "postscale_factor": 1.7}
        want = hvd.allreduce(value, **how)
        for _ in range(3):  # also by the fast path
            got = hvd.reduce(value, root, name=f"bits.{count}", **how)
            assert torch.equal(got, want if hvd.rank() == root else value)


@CASES.add
def others_keep_what_they_gave_without_factors() -> None:
    value = torch.full((3,), 2.0)
    got = hvd.reduce(value, 0, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert_same(got, torch.full((3,), 3.0 * hvd.size() if hvd.rank() == 0 else 2.0))


@CASES.add
def a_group_of_mixed_dtypes_with_a_tensor_twice() -> None:
    values = [mine((17, index), dtype) for index, dtype in enumerate(REDUCED)]
    results = hvd.grouped_reduce(values, 0, name="mixed", op=hvd.Sum)
    assert isinstance(results, tuple)
    for index, (dtype, result) in enumerate(zip(REDUCED, results, strict=True)):
        assert_on_the_root([result], [(17, index)], dtype, hvd.Sum, 0)
    tied = torch.ones(4)
    hvd.grouped_reduce_([tied, tied], 0, op=hvd.Sum)
    assert_same(tied, torch.full((4,), float(hvd.size() if hvd.rank() == 0 else 1)))
    with pytest.raises(ValueError, match="overlap"):
        hvd.grouped_reduce_([tied, tied[1:]], 0, op=hvd.Sum)


@CASES.add
def many_to_different_roots_in_different_orders() -> None:
    numbers = list(range(40))
    if hvd.rank() % 2:
        numbers.reverse()
    handles = {
        number: hvd.reduce_async(
            mine((number, 3), REDUCED[number % len(REDUCED)]),
            number % hvd.size(),
            name=f"many.{number}",
            op=hvd.Sum,
        )
        for number in numbers
    }
    for number in range(40):
        result = hvd.synchronize(handles[number])
        dtype = REDUCED[number % len(REDUCED)]
        assert_on_the_root([result], [(number, 3)], dtype, hvd.Sum, number % hvd.size())


@CASES.add
def slices_with_a_storage_offset() -> None:
    whole = torch.arange(24.0).reshape(3, 8)
    got = hvd.reduce(whole[1], 0, op=hvd.Sum)
    assert_same(got, whole[1] * (hvd.size() if hvd.rank() == 0 else 1))


@CASES.add
def in_process_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        assert members.ranks is not None
        root = members.ranks[-1]
        for form in (*FORMS.values(), *IN_PLACE.values()):
            for dtype in (torch.float32, torch.int64):
                values = [mine(shape, dtype) for shape in SHAPES]
                results = form(values, {"op": hvd.Sum, "root_rank": root, "process_set": members})
                assert_on_the_root(results, SHAPES, dtype, hvd.Sum, root, members)
        outside = next(rank for rank in range(hvd.size()) if rank not in members.ranks)
        with pytest.raises(ValueError, match="reduce received invalid root rank"):
            hvd.reduce(torch.ones(1), outside, process_set=members)


# -- gradients ----------------------------------------------------------------------------------------------


def gradient_case(dtype: torch.dtype, grouped: bool) -> None:
    root = hvd.size() - 1
    for op, share in ((hvd.Sum, 1.0), (hvd.Average, 1.0 / hvd.size())):
        x = torch.full((4, 2), float(hvd.rank() + 1), dtype=dtype).requires_grad_()
        how: dict[str, Any] = {"op": op, "prescale_factor": 2.0, "postscale_factor": 0.5}
        y = hvd.grouped_reduce([x], root, **how)[0] if grouped else hvd.reduce(x, root, **how)
        upstream = torch.full_like(y, float(hvd.rank() + 1)).detach()
        y.backward(upstream)
        own = 0.0 if hvd.rank() == root else float(hvd.rank() + 1)
        want = torch.full((4, 2), float(root + 1), dtype=dtype) * share + own
        assert_same(x.grad, want, 1e-2)
        assert torch.equal(upstream, torch.full_like(upstream, float(hvd.rank() + 1)))


for dtype in FLOATS:
    for grouped in (False, True):
        CASES.add_as(
            f"gradient_{'group' if grouped else 'one'}_{str(dtype).removeprefix('torch.')}",
            functools.partial(gradient_case, dtype, grouped),
        )


@CASES.add
def the_gradient_is_that_of_the_sum_of_all_losses() -> None:
    """By differences: the gradient of what all ranks' losses add up to."""
    root, weight = 0, float(hvd.rank() + 2)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (hvd.reduce(x, root, op=hvd.Average, prescale_factor=3.0) ** 2 * weight).sum()

    x = torch.full((1,), float(hvd.rank() + 1), dtype=torch.float64, requires_grad=True)
    loss(x).backward()
    step = 1e-6
    for changed in range(hvd.size()):
        delta = step if hvd.rank() == changed else 0.0
        with torch.no_grad():
            up = hvd.allreduce(loss(x + delta), op=hvd.Sum)
            down = hvd.allreduce(loss(x - delta), op=hvd.Sum)
        if hvd.rank() == changed:
            assert_same(x.grad, (up - down).reshape(1) / (2 * step), 1e-6)


@CASES.add
def in_place_is_a_change_for_autograd() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    hvd.reduce_(y, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# -- errors -------------------------------------------------------------------------------------------------


@CASES.add
def what_only_this_rank_can_know_is_refused_at_once() -> None:
    for wrong in (torch.ones(3, 4).t(), torch.ones(2, dtype=torch.complex64)):
        for call in (
            lambda t: hvd.reduce(t, 0, name="r.wrong"),
            lambda t: hvd.grouped_reduce([torch.ones(1), t], 0, name="r.wrong"),
        ):
            with pytest.raises(ValueError):
                call(wrong)
    for root in (-1, hvd.size()):
        with pytest.raises(ValueError, match=f"reduce received invalid root rank {root}"):
            hvd.reduce(torch.ones(2), root, name="r.wrong")
    with pytest.raises(hvd.HorovodInternalError, match="reduce does not support Adasum"):
        hvd.reduce(torch.ones(2), 0, name="r.wrong", op=hvd.Adasum)
    with pytest.raises(ValueError, match="at least one tensor"):
        hvd.grouped_reduce([], 0)
    works("r.wrong")


@CASES.add
def ranks_that_disagree() -> None:
    odd = hvd.rank() % 2
    name = "r.differ"
    disagree(
        lambda: hvd.reduce(torch.ones(2), odd, name=name),
        "Mismatched REDUCE root ranks: One rank specified root rank 0, but another",
    )
    disagree(lambda: hvd.reduce(torch.ones(6 + odd), 0, name=name), "Mismatched REDUCE tensor shapes")
    disagree(
        lambda: hvd.reduce(torch.ones(6), 0, name=name, prescale_factor=1.0 + odd),
        "Mismatched prescale and/or postscale factors",
    )
    disagree(
        lambda: hvd.reduce(torch.ones(6), 0, name=name, op=hvd.Sum if odd else hvd.Average),
        "Mismatched reduction operation",
    )
    disagree(lambda: hvd.grouped_reduce([torch.ones(6)] * 2, odd, name=name), "Mismatched REDUCE root ranks")
    works(name)


CASES.add_as("a_name_twice", lambda: duplicate_case(lambda n: hvd.reduce_async(torch.ones(4), 0, name=n)))
CASES.add_as(
    "a_name_twice_group",
    lambda: duplicate_case(lambda n: hvd.grouped_reduce_async([torch.ones(4)], 0, name=n)),
)


@CASES.add
def ranks_that_have_joined_count_as_zeros() -> None:
    if hvd.size() == 1:
        return
    if hvd.rank() != 0:
        got = hvd.reduce(torch.ones(3), hvd.size() - 1, name="r.join", op=hvd.Sum)
        root = hvd.rank() == hvd.size() - 1
        assert_same(got, torch.full((3,), float(hvd.size() - 1 if root else 1)))
        with pytest.raises(hvd.HorovodInternalError, match="REDUCE needs its root: rank 0 has joined"):
            hvd.reduce(torch.ones(3), 0, name="r.join")
    hvd.join()
