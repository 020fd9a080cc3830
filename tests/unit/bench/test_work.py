"""What goes in, what must come out, and that a wrong result is seen."""

from __future__ import annotations

import pytest
import torch

from horovod.bench.options import DTYPES, OPS
from horovod.bench.peers import Limit, check
from horovod.bench.work import describe_wrong, expected, fill, make_work


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["sum", "min", "max", "product"])
def test_expected_of_an_allreduce_is_the_reduction_of_the_inputs(op: str, ranks: int) -> None:
    combine = getattr(torch, {"sum": "add", "min": "minimum", "max": "maximum", "product": "mul"}[op])
    works = [make_work("allreduce", 4 * 130, ranks=ranks, dtype="int32", op=op) for _ in range(ranks)]
    for rank, work in enumerate(works):
        fill(work, rank)
    total = works[0].inputs[0]
    for work in works[1:]:
        total = combine(total, work.inputs[0])
    assert torch.equal(expected(works[0], 0, ranks)[0], total)


@pytest.mark.parametrize("ranks", [2, 3])
def test_expected_of_moves_and_of_reducescatter(ranks: int) -> None:
    def inputs(operation: str) -> list[torch.Tensor]:
        works = [
            make_work(operation, 4 * 7 * ranks, ranks=ranks, dtype="float32", op="sum") for _ in range(ranks)
        ]
        for rank, work in enumerate(works):
            fill(work, rank)
        return [work.inputs[0] for work in works]

    def wanted(operation: str, rank: int) -> torch.Tensor:
        return expected(
            make_work(operation, 4 * 7 * ranks, ranks=ranks, dtype="float32", op="sum"), rank, ranks
        )[0]

    for rank in range(ranks):
        assert torch.equal(wanted("allgather", rank), torch.cat(inputs("allgather")))
        assert torch.equal(wanted("broadcast", rank), inputs("broadcast")[0])
        parts = [each.chunk(ranks)[rank] for each in inputs("alltoall")]
        assert torch.equal(wanted("alltoall", rank), torch.cat(parts))
        total = torch.stack(inputs("reducescatter")).sum(0)
        assert torch.equal(wanted("reducescatter", rank), total.chunk(ranks)[rank])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_right_result_is_accepted_and_one_wrong_element_is_named(dtype: str, op: str) -> None:
    work = make_work("allreduce", 800, ranks=2, dtype=dtype, op=op)
    right = expected(work, 0, 2)[0].clone()
    assert describe_wrong(work, (right,), 0, 2) == ""
    right.view(-1)[63] = 0 if right[63].item() else 1
    assert describe_wrong(work, (right,), 0, 2).startswith("element 63 is ")


def test_result_of_a_wrong_length_is_seen() -> None:
    work = make_work("allreduce", 40, ranks=2, dtype="float32", op="sum")
    assert describe_wrong(work, (torch.zeros(9),), 0, 2) == "9 elements instead of 10"


@pytest.mark.parametrize(
    ("operation", "ranks", "size_bytes", "count"),
    [
        ("allreduce", 3, 4, 1),  # at least an element
        ("allreduce", 3, 1000, 250),
        ("grouped_allreduce", 3, 1024, 256),
        ("allgather", 3, 996, 83),  # equal shares
        ("alltoall", 3, 996, 249),
        ("reducescatter", 3, 996, 249),
        ("broadcast", 3, 1000, 250),
    ],
)
def test_size_is_the_input_s_and_of_allgather_the_output_s(
    operation: str, ranks: int, size_bytes: int, count: int
) -> None:
    work = make_work(
        operation,
        size_bytes + (1 if size_bytes > 4 else 0),
        ranks=ranks,
        dtype="float32",
        op="sum",
        tensors=4,
    )
    assert (work.size_bytes, work.count) == (size_bytes, count)


def test_barrier_has_no_tensors() -> None:
    work = make_work("barrier", 0, ranks=2, dtype="float32", op="sum")
    assert (work.inputs, work.size_bytes, expected(work, 0, 2), describe_wrong(work, (), 0, 2)) == (
        (),
        0,
        (),
        "",
    )


def test_works_in_flight_together_have_names_of_their_own() -> None:
    works = [make_work("allreduce", 4, ranks=2, dtype="int8", op="sum", number=i) for i in range(3)]
    assert len({work.name for work in works}) == 3


class Alone:
    """A team of one, as the second of two: nobody reduces anything."""

    rank, size = 1, 2

    def barrier(self) -> None:
        pass

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return values


def test_check_says_what_is_wrong_where_and_leaves_zeros() -> None:
    work = make_work("allreduce", 64, ranks=2, dtype="float32", op="sum")
    peer = Limit(Alone())
    said = check(peer, [work], peer.blocking(work))
    assert said == "allreduce of 64 B is wrong: element 1 is 2.0 instead of 3.0"
    assert not work.inputs[0].any()


def test_check_of_a_right_result_says_nothing() -> None:
    work = make_work("allreduce", 64, ranks=2, dtype="float32", op="sum")
    right = expected(work, 1, 2)[0]
    assert check(Limit(Alone()), [work], lambda: work.inputs[0].copy_(right)) == ""
