"""Alltoall: who gets which rows, what is refused, what goes back as a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.torch.errors import disagree, duplicate_case, works
from tests.contract.torch.values import REDUCED, assert_same, even_and_odd
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()

# Rows that set rank `sender` sends to set rank `receiver`, of n members.
Counts = Callable[[int, int, int], int]
COUNTS: dict[str, Counts] = {
    "growing": lambda sender, receiver, n: receiver + 1,
    "even": lambda sender, receiver, n: 3,
    "nothing": lambda sender, receiver, n: 0,
    "one_sends_nothing": lambda sender, receiver, n: 0 if sender == n - 1 else 2 + receiver,
    "one_gets_nothing": lambda sender, receiver, n: 0 if receiver == 0 else 1 + sender,
    "all_to_the_first": lambda sender, receiver, n: 4 + sender if receiver == 0 else 0,
    "large": lambda sender, receiver, n: 20_011 + 1000 * sender + receiver,
}


def check(counts: Counts, dtype: torch.dtype, tail: tuple[int, ...], some: hvd.ProcessSet, mode: str) -> None:
    """Each block holds a number that tells sender and receiver."""
    me, n = some.rank(), some.size()
    assert me is not None
    assert n is not None

    def block(sender: int, receiver: int) -> torch.Tensor:
        return torch.full((counts(sender, receiver, n), *tail), sender * 5 + receiver + 1).to(dtype)

    value = torch.cat([block(me, receiver) for receiver in range(n)])
    splits = [counts(me, receiver, n) for receiver in range(n)]
    before = value.clone()
    if mode == "async":
        result, received = hvd.synchronize(hvd.alltoall_async(value, splits, process_set=some))
    elif mode == "tensor":
        result, received = hvd.alltoall(value, torch.tensor(splits, dtype=torch.int32), process_set=some)
    else:
        result, received = hvd.alltoall(value, splits, process_set=some)
    assert_same(result, torch.cat([block(sender, me) for sender in range(n)]))
    # The counts are where the splits were: a list lies on the CPU, whatever new tensors do.
    device = torch.tensor(0).device if mode == "tensor" else torch.device("cpu")
    expected = [counts(sender, me, n) for sender in range(n)]
    assert_same(received, torch.tensor(expected, dtype=torch.int32, device=device))
    assert torch.equal(value, before)


def counts_case(name: str, mode: str) -> None:
    for tail in [(), (3,), (2, 5)] if name != "large" else [(7,)]:
        check(COUNTS[name], torch.float32, tail, hvd.global_process_set, mode)


for counts_name in COUNTS:
    for mode in ("list", "tensor", "async"):
        CASES.add_as(f"{counts_name}_{mode}", functools.partial(counts_case, counts_name, mode))


@CASES.add
def every_dtype() -> None:
    for dtype in REDUCED:
        for counts_name in ("growing", "one_gets_nothing"):
            check(COUNTS[counts_name], dtype, (3,), hvd.global_process_set, "list")


@CASES.add
def without_splits_every_rank_gets_equally_many() -> None:
    n, me = hvd.size(), hvd.rank()
    value = torch.arange(2 * n).float() + 100 * me
    expected = torch.cat([torch.arange(2 * me, 2 * me + 2) + 100.0 * sender for sender in range(n)])
    assert_same(hvd.alltoall(value), expected)
    result, received = hvd.synchronize(hvd.alltoall_async(value))
    assert_same(result, expected)
    assert received.tolist() == [2] * n
    assert_same(hvd.alltoall(torch.ones(0, 3)), torch.ones(0, 3))


@CASES.add
def the_last_rows_may_stay_home() -> None:
    n = hvd.size()
    value = torch.full((2 * n + 5,), float(hvd.rank()))
    result, received = hvd.alltoall(value, [1] * n)
    assert_same(result, torch.arange(n).float())
    assert received.tolist() == [1] * n


@CASES.add
def many_at_once_in_different_orders() -> None:
    n = hvd.size()
    numbers = list(range(30))
    if hvd.rank() % 2:
        numbers.reverse()
    handles = {
        number: hvd.alltoall_async(
            torch.full((n * (number % 4), 3), float(hvd.rank())).to(REDUCED[number % len(REDUCED)]),
            name=f"all.{number}",
        )
        for number in numbers
    }
    for number in range(30):
        result, received = hvd.synchronize(handles[number])
        rows = number % 4
        expected = torch.cat([torch.full((rows, 3), float(sender)) for sender in range(n)])
        assert_same(result, expected.to(REDUCED[number % len(REDUCED)]))
        assert received.tolist() == [rows] * n


@CASES.add
def slices_with_a_storage_offset() -> None:
    n = hvd.size()
    whole = torch.arange(3 * n * 2).reshape(3, 2 * n) + 1000 * hvd.rank()
    expected = torch.cat(
        [torch.arange(2 * n)[2 * hvd.rank() :][:2] + 2 * n + 1000 * sender for sender in range(n)]
    )
    assert_same(hvd.alltoall(whole[1]), expected)


@CASES.add
def splits_change_under_a_known_name() -> None:
    n = hvd.size()
    for step in range(4):
        splits = [(step + receiver) % 3 for receiver in range(n)]
        value = torch.ones(sum(splits), 2)
        _, received = hvd.alltoall(value, splits, name="a.known")
        assert received.tolist() == [(step + hvd.rank()) % 3] * n


@CASES.add
def what_only_this_rank_can_know_is_refused_at_once() -> None:
    n = hvd.size()
    wrong: list[tuple[torch.Tensor, Any]] = [
        (torch.ones(n), torch.ones(n)),
        (torch.ones(n), [2] * n),
        (torch.ones(n), [1] * (n + 1)),
        (torch.ones(n), [-1] * n),
        (torch.tensor(1.0), None),
        (torch.ones(4, 4 * n).t(), None),
        (torch.empty(n, dtype=torch.complex32), None),
    ]
    if n > 1:
        wrong.append((torch.ones(n + 1), None))
    for value, splits in wrong:
        with pytest.raises(ValueError):
            hvd.alltoall(value, splits, name="a.wrong")
    works("a.wrong")


@CASES.add
def dtypes_and_rows_that_differ() -> None:
    n = hvd.size()
    odd = hvd.rank() % 2
    value = torch.ones(n, dtype=torch.float64 if odd else torch.int32)
    disagree(lambda: hvd.alltoall(value, name="a.dtype"), "Mismatched data types: One rank had type")
    wide = torch.ones(n, 3 + odd)
    disagree(lambda: hvd.alltoall(wide, name="a.dtype"), "Mismatched ALLTOALL tensor shapes: .* dimension")
    deep = torch.ones(n, 3) if odd else torch.ones(n, 3, 1)
    disagree(lambda: hvd.alltoall(deep, name="a.dtype"), "Mismatched ALLTOALL tensor shapes: .* of rank")
    assert hvd.alltoall(torch.ones(n), name="a.dtype").shape == (n,)


CASES.add_as(
    "a_name_twice",
    lambda: duplicate_case(lambda name: hvd.alltoall_async(torch.ones(hvd.size()), name=name)),
)


@CASES.add
def the_gradient_of_ones_is_ones() -> None:
    n, me = hvd.size(), hvd.rank()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for splits in (None, [receiver + me for receiver in range(n)]):
            rows = 2 * n if splits is None else sum(splits)
            x = torch.full((rows, 2), float(me + 1), dtype=dtype).requires_grad_()
            result = hvd.alltoall(x, splits)
            y = result if isinstance(result, torch.Tensor) else result[0]
            y.sum().backward()
            assert_same(x.grad, torch.ones_like(x).detach())


@CASES.add
def gradients_go_back_to_where_the_rows_came_from() -> None:
    n, me = hvd.size(), hvd.rank()
    splits = [receiver + 1 for receiver in range(n)]
    x = torch.ones(sum(splits) + 2, 3).requires_grad_()
    result, received = hvd.alltoall(x, splits)
    assert not received.requires_grad
    result.backward(torch.full_like(result, float(me + 1)))
    blocks = [torch.full((receiver + 1, 3), float(receiver + 1)) for receiver in range(n)]
    assert_same(x.grad, torch.cat([*blocks, torch.zeros(2, 3)]))


@CASES.add
def second_derivatives() -> None:
    n = hvd.size()
    x = torch.full((n, 2), float(hvd.rank() + 1)).requires_grad_()
    y = hvd.alltoall(x)
    (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    assert_same(first.detach(), 2 * x.detach())
    first.sum().backward()
    assert_same(x.grad, torch.full_like(x, 2.0).detach())


@CASES.add
def in_process_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as mine:
        for counts_name in ("growing", "one_sends_nothing"):
            for mode in ("list", "async"):
                check(COUNTS[counts_name], torch.int16, (2,), mine, mode)
        n = mine.size()
        assert n is not None
        x = torch.ones(2 * n, requires_grad=True)
        y = hvd.alltoall(x, process_set=mine)
        y.sum().backward()
        assert_same(x.grad, torch.ones(2 * n))
        with pytest.raises(ValueError):
            hvd.alltoall(torch.ones(n), [1] * (n + 1), process_set=mine)
