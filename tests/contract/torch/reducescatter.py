"""Reducescatter: every dtype, form and shape, also with fewer rows than ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.contract.torch.errors import disagree, duplicate_case, works
from tests.contract.torch.values import (
    FLOATS,
    REDUCED,
    Shape,
    assert_same,
    assert_scattered,
    even_and_odd,
    large,
    mine,
)
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
SHAPES: list[Shape] = [(0,), (1,), (3,), (17,), (3, 0, 2), (8, 5), (17, 17), (5, 7, 3)]

Form = Callable[[Sequence[torch.Tensor], dict[str, Any]], Sequence[torch.Tensor]]


def at_once(values: Sequence[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    handles = [hvd.reducescatter_async(value, **options) for value in values]
    return [hvd.synchronize(handle) for handle in handles]


FORMS: dict[str, Form] = {
    "blocking": lambda xs, options: [hvd.reducescatter(x, **options) for x in xs],
    "async": at_once,
    "grouped": lambda xs, options: hvd.grouped_reducescatter(list(xs), **options),
    "grouped_async": lambda xs, options: hvd.synchronize(
        hvd.grouped_reducescatter_async(list(xs), **options)
    ),
}


def values_case(op: int, dtype: torch.dtype) -> None:
    shapes = [*SHAPES, (large(dtype)[0] // 3, 3)]
    values = [mine(shape, dtype, op) for shape in shapes]
    before = [value.clone() for value in values]
    for form_name, form in FORMS.items():
        for shape, result in zip(shapes, form(values, {"op": op}), strict=True):
            assert_scattered(result, shape, dtype, op)
        assert all(torch.equal(value, old) for value, old in zip(values, before, strict=True)), form_name


for op_name, op in {"sum": hvd.Sum, "average": hvd.Average}.items():
    for dtype in REDUCED:
        CASES.add_as(
            f"{op_name}_{str(dtype).removeprefix('torch.')}", functools.partial(values_case, op, dtype)
        )


@CASES.add
def a_group_of_mixed_dtypes() -> None:
    values = [mine((17, index), dtype) for index, dtype in enumerate(REDUCED)]
    results = hvd.grouped_reducescatter(values, name="rs.mixed", op=hvd.Sum)
    assert isinstance(results, list)
    for index, (dtype, result) in enumerate(zip(REDUCED, results, strict=True)):
        assert_scattered(result, (17, index), dtype, hvd.Sum)


@CASES.add
def many_named_operations_in_different_orders() -> None:
    numbers = list(range(40))
    if hvd.rank() % 2:
        numbers.reverse()
    kinds = {number: (REDUCED[number % len(REDUCED)], (number, 3)) for number in numbers}
    handles = {
        number: hvd.reducescatter_async(mine(shape, dtype), name=f"rs.{number}", op=hvd.Sum)
        for number, (dtype, shape) in kinds.items()
    }
    for number in range(40):
        dtype, shape = kinds[number]
        assert_scattered(hvd.synchronize(handles[number]), shape, dtype, hvd.Sum)


@CASES.add
def fresh_handles_are_not_all_done() -> None:
    handles = [hvd.reducescatter_async(mine((1000,), torch.float32), op=hvd.Sum) for _ in range(20)]
    polled = [hvd.poll(handle) for handle in handles]
    for handle in handles:
        assert_scattered(hvd.synchronize(handle), (1000,), torch.float32, hvd.Sum)
    assert not all(polled)


def scaled_case(dtype: torch.dtype, grouped: bool) -> None:
    """Factors are applied and rounded as in an allreduce."""
    value = torch.arange(-40, 40).to(dtype).reshape(16, 5)
    first = sum((16 // hvd.size()) + (rank < 16 % hvd.size()) for rank in range(hvd.rank()))
    for factors in ({"prescale_factor": 0.3}, {"postscale_factor": 0.3}, {"prescale_factor": 2.0}):
        options: dict[str, Any] = {"op": hvd.Sum, **factors}
        if grouped:
            got = hvd.grouped_reducescatter([value], **options)[0]
        else:
            got = hvd.reducescatter(value, **options)
        everything = hvd.allreduce(value, **options)
        assert_same(got, everything.narrow(0, first, got.shape[0]))


for dtype in [torch.int32, torch.int64, *FLOATS]:
    for grouped in (False, True):
        CASES.add_as(
            f"scaled_{'group' if grouped else 'one'}_{str(dtype).removeprefix('torch.')}",
            functools.partial(scaled_case, dtype, grouped),
        )


@CASES.add
def slices_with_a_storage_offset() -> None:
    whole = torch.arange(24.0).reshape(3, 8)
    got = hvd.reducescatter(whole[1], op=hvd.Sum)
    first = sum((8 // hvd.size()) + (rank < 8 % hvd.size()) for rank in range(hvd.rank()))
    assert_same(got, (whole[1] * hvd.size())[first : first + got.shape[0]])


@CASES.add
def results_equal_those_of_allreduce_bit_by_bit() -> None:
    generator = torch.Generator().manual_seed(hvd.rank())
    for rows in (5, 1000, 100_001):
        value = torch.randn(rows, 3, generator=generator)
        parts = hvd.allgather(hvd.reducescatter(value))
        assert torch.equal(parts, hvd.allreduce(value))


@CASES.add
def compression_halves_what_travels() -> None:
    value = torch.full((8, 2), 2.0)
    got = hvd.reducescatter(value, compression=hvd.Compression.fp16, op=hvd.Sum)
    assert got.dtype == torch.float32
    assert bool((got == 2.0 * hvd.size()).all())


@CASES.add
def what_only_this_rank_can_know_is_refused_at_once() -> None:
    for wrong in (torch.tensor(1.0), torch.ones(3, 4).t(), torch.ones(2, dtype=torch.complex64)):
        for call in (
            lambda t: hvd.reducescatter(t, name="rs.wrong"),
            lambda t: hvd.grouped_reducescatter([torch.ones(1), t], name="rs.wrong"),
        ):
            with pytest.raises(ValueError):
                call(wrong)
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(hvd.HorovodInternalError):
            hvd.reducescatter(torch.ones(2), name="rs.wrong", op=op)
    with pytest.raises(TypeError):
        hvd.reducescatter(torch.ones(2), op=None)  # type: ignore[arg-type]
    assert hvd.allgather(hvd.reducescatter(torch.ones(5), name="rs.wrong")).shape == (5,)
    works("rs.wrong")


@CASES.add
def ranks_that_disagree() -> None:
    odd = hvd.rank() % 2
    name = "rs.differ"
    shapes = r"Mismatched REDUCESCATTER tensor shapes: .*\[6, 3\]"
    disagree(lambda: hvd.reducescatter(torch.ones(6 + odd, 3), name=name), shapes)
    disagree(lambda: hvd.reducescatter(torch.ones(6, 3) if odd else torch.ones(18), name=name), shapes)
    disagree(
        lambda: hvd.reducescatter(torch.ones(6, dtype=torch.int32 if odd else torch.int64), name=name),
        "Mismatched data types",
    )
    disagree(
        lambda: hvd.reducescatter(torch.ones(6), name=name, prescale_factor=1.0 + odd),
        "Mismatched prescale and/or postscale factors",
    )
    disagree(
        lambda: hvd.reducescatter(torch.ones(6), name=name, op=hvd.Sum if odd else hvd.Average),
        "Mismatched (prescale and/or postscale factors|reduction operation)",
    )
    assert hvd.allgather(hvd.reducescatter(torch.ones(5), name=name)).shape == (5,)


CASES.add_as("a_name_twice", lambda: duplicate_case(lambda n: hvd.reducescatter_async(torch.ones(4), name=n)))
CASES.add_as(
    "a_name_twice_group",
    lambda: duplicate_case(lambda n: hvd.grouped_reducescatter_async([torch.ones(4)], name=n)),
)


def gradient_case(dtype: torch.dtype, grouped: bool) -> None:
    for rows in (4 * hvd.size(), 3, 1):
        for op, expected in ((hvd.Sum, float(hvd.size())), (hvd.Average, 1.0)):
            x = torch.full((rows, 2), float(hvd.rank() + 1), dtype=dtype).requires_grad_()
            if grouped:
                y = hvd.grouped_reducescatter([x], op=op, prescale_factor=2.0)[0]
            else:
                y = hvd.reducescatter(x, op=op, prescale_factor=2.0)
            upstream = torch.ones_like(y)
            y.backward(upstream)
            assert_same(x.grad, torch.full_like(x, 2.0 * expected).detach())
            assert torch.equal(upstream, torch.ones_like(upstream)), "the upstream gradient was modified"


for dtype in FLOATS:
    for grouped in (False, True):
        CASES.add_as(
            f"gradient_{'group' if grouped else 'one'}_{str(dtype).removeprefix('torch.')}",
            functools.partial(gradient_case, dtype, grouped),
        )


@CASES.add
def expanded_upstream_gradients_are_fine() -> None:
    x = torch.ones(5, requires_grad=True)
    hvd.reducescatter(x, op=hvd.Sum).sum().backward()
    assert_same(x.grad, torch.full((5,), float(hvd.size())))


@CASES.add
def gradients_of_a_group_member_by_member_with_integers_among_it() -> None:
    xs = [torch.ones(4, index + 1, requires_grad=True) for index in range(3)]
    ys = hvd.grouped_reducescatter([xs[0], torch.ones(4, dtype=torch.int32), xs[1], xs[2]], op=hvd.Sum)
    assert not ys[1].requires_grad
    for index in (0, 2, 3):
        ys[index].backward(torch.ones_like(ys[index]), retain_graph=index < 3)
    for x in xs:
        assert_same(x.grad, torch.full_like(x, hvd.size()).detach())


@CASES.add
def in_process_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        for form in FORMS.values():
            for op in (hvd.Sum, hvd.Average):
                for dtype in (torch.float32, torch.int64):
                    values = [mine(shape, dtype, op) for shape in SHAPES]
                    results = form(values, {"op": op, "process_set": members})
                    for shape, result in zip(SHAPES, results, strict=True):
                        assert_scattered(result, shape, dtype, op, members)
        size = members.size()
        assert size is not None
        for grouped in (False, True):
            x = torch.ones(5, 2, requires_grad=True)
            if grouped:
                y = hvd.grouped_reducescatter([x], op=hvd.Sum, process_set=members)[0]
            else:
                y = hvd.reducescatter(x, op=hvd.Sum, process_set=members)
            y.sum().backward()
            assert_same(x.grad, torch.full((5, 2), float(size)))
