"""Join: ranks that run out of data take part in the others' allreduces with zeros."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.torch.errors import works
from tests.contract.torch.values import REDUCED, assert_same, integers, tensor
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
SHAPES = [(5,), (17, 2)]


def without(first: int, shape: tuple[int, ...], dtype: torch.dtype, op: int) -> torch.Tensor:
    """What an allreduce gives when rank ``first`` contributes zeros, from plain arithmetic."""
    everyone = [
        torch.zeros(shape, dtype=torch.int64)
        if rank == first
        else torch.tensor(integers(rank, shape, dtype, op))
        for rank in range(hvd.size())
    ]
    stacked = torch.stack(everyone)
    if dtype == torch.bool:
        truth = stacked.bool()
        return truth.any(0) if op in (hvd.Sum, hvd.Max) else truth.all(0)
    if op == hvd.Average:
        exact = stacked.sum(0).double() * (1.0 / hvd.size())
        return exact.to(dtype) if dtype.is_floating_point else exact.trunc().to(dtype)
    if op == hvd.Product:
        return stacked.prod(0).to(dtype)
    result = {hvd.Sum: stacked.sum(0), hvd.Min: stacked.amin(0), hvd.Max: stacked.amax(0)}[op]
    return result.to(dtype)


def everybody_agrees(last: int, first: int) -> None:
    assert isinstance(last, int)
    assert 0 <= last < hvd.size()
    assert last != first
    assert set(hvd.allgather_object(last)) == {last}


def round_with(first: int, work: Callable[[], Any]) -> None:
    """Rank ``first`` joins at once, the others after ``work``, which needs everybody."""
    if hvd.rank() == first:
        last = hvd.join()
    else:
        work()
        last = hvd.join()
    everybody_agrees(last, first)


def values_case(dtype: torch.dtype, known: bool) -> None:
    if hvd.size() == 1:
        assert hvd.join() == 0
        return
    for first in range(hvd.size()):
        names = [f"j.{dtype}.{known}.{first}.{i}" for i in range(len(SHAPES))]
        inputs = [tensor(integers(hvd.rank(), shape, dtype, hvd.Average), dtype) for shape in SHAPES]

        def reduce_all(names: list[str] = names, inputs: list[torch.Tensor] = inputs) -> list[torch.Tensor]:
            handles = [hvd.allreduce_async(x, name=n) for x, n in zip(inputs, names, strict=True)]
            return [hvd.synchronize(handle) for handle in handles]

        def check(first: int = first, run: Callable[[], list[torch.Tensor]] = reduce_all) -> None:
            for shape, result in zip(SHAPES, run(), strict=True):
                rounding = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-6)
                assert_same(result, without(first, shape, dtype, hvd.Average), rounding)

        if known:
            reduce_all()
            reduce_all()
        round_with(first, check)
    works()


for dtype in REDUCED:
    for known in (False, True):
        CASES.add_as(
            f"averages_{'known' if known else 'new'}_{str(dtype).removeprefix('torch.')}",
            functools.partial(values_case, dtype, known),
        )


def operator_case(op: int) -> None:
    if hvd.size() == 1:
        return
    for first in range(hvd.size()):
        for dtype in (torch.float32, torch.int64, torch.bool):

            def check(first: int = first, dtype: torch.dtype = dtype) -> None:
                inputs = [tensor(integers(hvd.rank(), shape, dtype, op), dtype) for shape in SHAPES]
                single = [hvd.allreduce(x, op=op, name=f"j.op.{i}") for i, x in enumerate(inputs)]
                group = hvd.grouped_allreduce(inputs, op=op, name="j.op.group")
                for results in (single, group):
                    for shape, result in zip(SHAPES, results, strict=True):
                        assert_same(result, without(first, shape, dtype, op), 1e-6)

            round_with(first, check)


for op_name, op in {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}.items():
    CASES.add_as(f"zeros_take_part_in_{op_name}", functools.partial(operator_case, op))


@CASES.add
def large_tensors_and_factors() -> None:
    if hvd.size() == 1:
        return
    count = 300_001

    def check() -> None:
        value = torch.full((count,), float(hvd.rank() + 1))
        result = hvd.allreduce(value, op=hvd.Sum, name="j.large", prescale_factor=2.0, postscale_factor=0.5)
        assert_same(result, torch.full((count,), float(sum(range(2, hvd.size() + 1)))))

    round_with(0, check)


@CASES.add
def what_the_others_cannot_do_meanwhile() -> None:
    """They get an error that says so, the joined rank stays joined, and they can join as well."""
    if hvd.size() == 1:
        return
    n = hvd.size()
    for first in range(n):

        def fail() -> None:
            value = torch.ones(n)
            for call in (
                lambda: hvd.allgather(value, name="j.gather"),
                lambda: hvd.grouped_allgather([value], name="j.gather"),
                lambda: hvd.broadcast(value, (first + 1) % n, name="j.broadcast"),  # noqa: B023 - called at once
                lambda: hvd.alltoall(value, name="j.alltoall"),
                lambda: hvd.reducescatter(value, name="j.reducescatter"),
            ):
                with pytest.raises(hvd.HorovodInternalError, match=r"(?i)join"):
                    call()
            assert hvd.allreduce(torch.ones(2), name="j.still", op=hvd.Sum).tolist() == [float(n - 1)] * 2

        round_with(first, fail)
    works("j.gather")


@CASES.add
def ranks_run_out_one_after_the_other() -> None:
    """Rank r has r batches: the classical use. The last one to join is known to all."""
    n = hvd.size()
    for batch in range(n):
        if batch > hvd.rank():
            break
        total = hvd.allreduce(torch.ones(3), name="j.batch", op=hvd.Sum)
        assert total.tolist() == [float(n - batch)] * 3
    assert hvd.join() == n - 1
    works("j.batch")


@CASES.add
def many_rounds() -> None:
    for step in range(20):
        assert 0 <= hvd.join() < hvd.size()
        works(f"j.round.{step % 3}")


@CASES.add
def sets_of_ranks_that_have_not_joined_work_on() -> None:
    if hvd.size() < 3:
        return
    others = hvd.add_process_set(range(1, hvd.size()))

    def check() -> None:
        total = hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=others, name="j.set")
        assert total.tolist() == [float(hvd.size() - 1)] * 2
        assert hvd.allgather(torch.ones(1), process_set=others, name="j.set").shape == (hvd.size() - 1,)
        hvd.barrier(others)

    round_with(0, check)
    assert hvd.remove_process_set(others)


@CASES.add
def an_optimizer_with_uneven_data() -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(2 + hvd.rank()):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    last = hvd.join()
    assert last == hvd.size() - 1
    # The last rank took part in every step; from there all can go on with equal weights.
    hvd.broadcast_parameters(model.state_dict(), last)
    weights = hvd.allgather(model.weight.detach().reshape(1, -1))
    assert all(torch.equal(row, weights[0]) for row in weights)
