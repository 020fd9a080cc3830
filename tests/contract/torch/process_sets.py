"""Process sets: registration on all ranks, operations inside them, misuse."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.torch.errors import works
from tests.contract.torch.values import OPS, REDUCED, assert_reduced, assert_same, even_and_odd, mine
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()


def registered() -> dict[int, list[int]]:
    sets: dict[int, list[int]] = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    return sets


def world() -> list[int]:
    return list(range(hvd.size()))


@CASES.add
def sets_come_and_go() -> None:
    if hvd.size() == 1:
        return
    renewed([])
    some = hvd.ProcessSet([1, 0] if hvd.size() > 2 else [1])
    assert hvd.add_process_set(some) is some
    assert registered() == {0: world(), 1: some.ranks}
    assert str(some) == f"ProcessSet(process_set_id=1, ranks={some.ranks}, mpi_comm=None)"
    last = hvd.add_process_set([hvd.size() - 1] if hvd.size() > 2 else [0])
    assert last.process_set_id == 2
    assert hvd.remove_process_set(some) is True
    assert some.process_set_id is None
    assert hvd.remove_process_set(some) is False
    assert registered() == {0: world(), 2: last.ranks}
    again = hvd.add_process_set(some)
    assert again is some
    assert again.process_set_id == 1
    assert hvd.remove_process_set(last)
    assert hvd.remove_process_set(again)
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert registered() == {0: world()}


@CASES.add
def sets_that_exist_cannot_be_added_again() -> None:
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set(reversed(world()))
    if hvd.size() > 2:
        some = hvd.add_process_set([0, 2])
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.add_process_set([2, 0])
        assert hvd.remove_process_set(some)
    for ranks in ([0, 0], [hvd.size()], [-1], []):
        with pytest.raises(ValueError):
            hvd.add_process_set(ranks)
    works()


@CASES.add
def callers_that_name_different_ranks() -> None:
    if hvd.size() < 3:
        return
    with pytest.raises(ValueError) as info:
        hvd.add_process_set([0, 1] if hvd.rank() == 0 else [0, 2])
    assert isinstance(info.value, hvd.HorovodInternalError)
    try:
        works()
    except hvd.HorovodInternalError:  # a core that ends the world then
        hvd.shutdown()
        hvd.init()


@CASES.add
def every_dtype_and_operator_in_even_and_odd_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        for op in OPS.values():
            for dtype in REDUCED:
                shapes = [(), (0,), (17,), (3, 5)]
                got = [hvd.allreduce(mine(shape, dtype, op), op=op, process_set=members) for shape in shapes]
                got_grouped = hvd.grouped_allreduce(
                    [mine(shape, dtype, op) for shape in shapes], op=op, process_set=members
                )
                for shape, one, grouped in zip(shapes, got, got_grouped, strict=True):
                    assert_reduced(one, shape, dtype, op, members)
                    assert_reduced(grouped, shape, dtype, op, members)


@CASES.add
def large_tensors_in_even_and_odd_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        for count in (40_000, 700_001):
            value = mine((count,), torch.float32)
            handles = [hvd.allreduce_async(value, op=hvd.Sum, process_set=members) for _ in range(3)]
            for handle in handles:
                assert_reduced(hvd.synchronize(handle), (count,), torch.float32, hvd.Sum, members)
            hvd.allreduce_(value, op=hvd.Sum, process_set=members)
            assert_reduced(value, (count,), torch.float32, hvd.Sum, members)


@CASES.add
def a_name_on_offer_among_all_ranks_is_free_in_a_set() -> None:
    """While a blocking operation waits for a rank that is late, a set uses the same name."""
    if hvd.size() == 1:
        return
    value = torch.ones(4)
    alone = hvd.add_process_set([0])
    for _ in range(3):  # from the second on, ranks agree on it by themselves
        assert hvd.allreduce(value, name="s.name", op=hvd.Sum).tolist() == [hvd.size()] * 4
    hvd.barrier()
    others: list[torch.Tensor] = []
    waiting = threading.Thread(
        target=lambda: others.append(hvd.allreduce(value, name="s.name", op=hvd.Sum)), daemon=True
    )
    if hvd.rank() == 0:
        waiting.start()
        time.sleep(0.05)  # nothing tells that it is on offer; too short, and the case sees nothing
        assert hvd.allreduce(value, name="s.name", op=hvd.Sum, process_set=alone).tolist() == [1.0] * 4
    else:
        time.sleep(0.5)  # an offer ends when its rank says anything else: this one is late and silent
        waiting.start()
    waiting.join(20.0)
    assert others[0].tolist() == [hvd.size()] * 4
    assert hvd.remove_process_set(alone)


@CASES.add
def gathers_and_broadcasts_in_even_and_odd_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        ranks = members.ranks
        assert ranks is not None
        for dtype in REDUCED:
            block = [torch.full((rank + 1, 2), rank).to(dtype) for rank in ranks]
            own = block[ranks.index(hvd.rank())]
            assert_same(hvd.allgather(own, process_set=members), torch.cat(block))
            assert_same(hvd.grouped_allgather([own, own], process_set=members)[1], torch.cat(block))
            for root in ranks:
                value = torch.full((5,), hvd.rank()).to(dtype)
                assert_same(hvd.broadcast(value, root, process_set=members), torch.full((5,), root).to(dtype))
                hvd.broadcast_(value, root, process_set=members)
                assert_same(value, torch.full((5,), root).to(dtype))


@CASES.add
def sets_that_overlap() -> None:
    """All pairs of ranks and everybody, at once and under one name, submitted in different orders."""
    if hvd.size() < 3:
        return
    n = hvd.size()
    pairs = [hvd.add_process_set([a, b]) for a in range(n) for b in range(a + 1, n)]
    mine_too = [pair for pair in pairs if pair.included()] + [hvd.global_process_set]
    if hvd.rank() % 2:
        mine_too.reverse()
    for count in (3, 50_000):
        for _ in range(3):
            handles = [
                (
                    members,
                    hvd.allreduce_async(
                        mine((count,), torch.float32), name="p.one_name", op=hvd.Sum, process_set=members
                    ),
                )
                for members in mine_too
            ]
            for members, handle in handles:
                assert_reduced(hvd.synchronize(handle), (count,), torch.float32, hvd.Sum, members)
    for pair in pairs:
        assert hvd.remove_process_set(pair)


@CASES.add
def blocking_operations_of_different_sets_do_not_wait_for_each_other() -> None:
    """Rank 0 works in its own set while the others work in theirs: nobody needs the other's progress."""
    if hvd.size() < 3:
        return
    alone = hvd.add_process_set([0])
    others = hvd.add_process_set(range(1, hvd.size()))
    members = alone if hvd.rank() == 0 else others
    for step in range(100 if hvd.rank() == 0 else 30):
        assert_reduced(
            hvd.allreduce(mine((7,), torch.float64), name=f"p.own.{step}", op=hvd.Sum, process_set=members),
            (7,),
            torch.float64,
            hvd.Sum,
            members,
        )
    assert hvd.remove_process_set(alone)
    assert hvd.remove_process_set(others)
    works()


@CASES.add
def gradients_in_even_and_odd_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        size, ranks = members.size(), members.ranks
        assert size is not None
        assert ranks is not None
        for grouped in (False, True):
            x = torch.ones(3, requires_grad=True)
            if grouped:
                y = hvd.grouped_allreduce([x], op=hvd.Sum, process_set=members)[0]
            else:
                y = hvd.allreduce(x, op=hvd.Sum, process_set=members)
            y.sum().backward()
            assert_same(x.grad, torch.full((3,), float(size)))

            x = torch.full((hvd.rank() + 1, 2), 1.0, requires_grad=True)
            if grouped:
                y = hvd.grouped_allgather([x], process_set=members)[0]
            else:
                y = hvd.allgather(x, process_set=members)
            y.backward(torch.cat([torch.full((rank + 1, 2), float(rank)) for rank in ranks]))
            assert_same(x.grad, torch.full((hvd.rank() + 1, 2), float(hvd.rank())), 1e-6)
        for root in ranks:
            x = torch.ones(2, requires_grad=True)
            hvd.broadcast(x, root, process_set=members).sum().backward()
            assert_same(x.grad, torch.full((2,), float(root == hvd.rank())), 1e-6)


@CASES.add
def sparse_tensors_and_objects_in_even_and_odd_sets() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members:
        ranks = members.ranks
        assert ranks is not None
        dense = torch.zeros(hvd.size(), 2)
        dense[hvd.rank()] = float(hvd.rank() + 1)
        for op in (hvd.Sum, hvd.Average):
            start = hvd.sparse_allreduce_async(dense.to_sparse(1), f"p.sparse.{op}", op, members)
            assert_same(start().to_dense(), hvd.allreduce(dense, op=op, process_set=members), 1e-6)
        for root in ranks:
            received = hvd.broadcast_object({"root": hvd.rank()}, root, process_set=members)
            assert received == {"root": root}


@CASES.add
def an_optimizer_of_the_even_set() -> None:
    if hvd.size() < 3:
        return
    with even_and_odd() as members:
        torch.manual_seed(1)
        model = torch.nn.Linear(2, 1)
        even = members if hvd.rank() % 2 == 0 else None
        if even is not None:
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=even
            )
            model(torch.full((4, 2), float(hvd.rank()))).sum().backward()
            optimizer.step()
            weights = hvd.allgather(model.weight.detach(), process_set=even)
            assert all(torch.equal(row, weights[0]) for row in weights)


@CASES.add
def a_barrier_waits_for_the_members_only() -> None:
    if hvd.size() < 3:
        return
    with even_and_odd() as members:
        even = hvd.rank() % 2 == 0
        if not even:
            hvd.barrier(members)  # rank 0 comes to its own only after this one
        passed = hvd.allreduce_async(torch.ones(1), name="p.passed")
        if hvd.rank() == 0:
            hvd.synchronize(passed)
            time.sleep(0.1)  # being late is what this case is about
        came = time.monotonic()
        if even:
            hvd.barrier(members)
        left = time.monotonic()
        if hvd.rank() != 0:
            hvd.synchronize(passed)
        last_came = hvd.broadcast_object(came, 0)
        assert not even or left >= last_came


def calls_in(some: hvd.ProcessSet) -> dict[str, Callable[[], Any]]:
    one = torch.ones(1)
    return {
        "allreduce": lambda: hvd.allreduce(one, process_set=some),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([one], process_set=some),
        "allgather": lambda: hvd.allgather_async(one, process_set=some),
        "broadcast": lambda: hvd.broadcast_(one, (some.ranks or [0])[0], process_set=some),
        "alltoall": lambda: hvd.alltoall(one, [1] + [0] * (len(some.ranks or []) - 1), process_set=some),
        "reducescatter": lambda: hvd.reducescatter(one, process_set=some),
        "barrier": lambda: hvd.barrier(some),
    }


@CASES.add
def foreign_sets_are_refused_on_the_caller_alone() -> None:
    if hvd.size() == 1:
        return
    some = hvd.add_process_set(range(1, hvd.size()))
    if hvd.rank() == 0:
        for call in calls_in(some).values():
            with pytest.raises(ValueError, match=r"member of the provided process set|invalid root rank"):
                call()
    hvd.barrier()
    for root in (0, hvd.size()):
        if hvd.rank() != 0:
            with pytest.raises(ValueError, match="invalid root rank"):
                hvd.broadcast(torch.ones(1), root, process_set=some)
    assert hvd.remove_process_set(some)
    works("p.foreign")


@CASES.add
def unregistered_and_unknown_sets_are_refused() -> None:
    stranger = hvd.ProcessSet([hvd.rank()])
    for call in calls_in(stranger).values():
        with pytest.raises(TypeError, match="not registered"):
            call()
    stranger.process_set_id = 4711
    for name, call in calls_in(stranger).items():
        expected = IndexError if name == "barrier" else ValueError
        with pytest.raises(expected, match="does not exist, or has not been registered"):
            call()
    works("p.unknown")


@CASES.add
def adasum_needs_all_ranks() -> None:
    if hvd.size() == 1:
        return
    with even_and_odd() as members, pytest.raises(NotImplementedError):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum, process_set=members)


@CASES.add
def ranks_of_a_set_that_disagree() -> None:
    if hvd.size() < 3:
        return
    with even_and_odd() as members:
        if len(members.ranks or ()) > 1:
            value = torch.ones(3 + (hvd.rank() == members.ranks[-1]))  # type: ignore[index]
            with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes"):
                hvd.allreduce(value, name="p.differ", process_set=members)
        assert_reduced(
            hvd.allreduce(mine((4,), torch.int32), name="p.differ", op=hvd.Sum, process_set=members),
            (4,),
            torch.int32,
            hvd.Sum,
            members,
        )


@CASES.add
def what_is_queued_on_a_set_fails_when_it_is_removed() -> None:
    if hvd.size() < 3:
        return
    some = hvd.add_process_set([0, 1])
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="p.queued", process_set=some)
    assert hvd.remove_process_set(some)
    if handle is not None:
        with pytest.raises(hvd.HorovodInternalError, match="Process set has been removed"):
            hvd.synchronize(handle)
    # The number is used again, for other ranks.
    other = hvd.add_process_set([0, 2])
    if other.included():
        total = hvd.allreduce(torch.ones(2), name="p.queued", op=hvd.Sum, process_set=other)
        assert total.tolist() == [2.0, 2.0]
    assert hvd.remove_process_set(other)


@CASES.add
def objects_travel_in_a_set_whose_number_another_one_had() -> None:
    if hvd.size() < 3:
        return
    for ranks in ([0, 1], [1, 2]):
        some = hvd.add_process_set(ranks)
        if some.included():
            assert hvd.broadcast_object(hvd.rank(), 1, process_set=some) == 1
        assert hvd.remove_process_set(some)
    works("p.objects")


@CASES.add
def many_sets_come_and_go() -> None:
    if hvd.size() == 1:
        return
    for step in range(60):
        some = hvd.add_process_set([step % hvd.size()])
        if some.included():
            assert hvd.allreduce(torch.ones(1), name="p.many", process_set=some).item() == 1.0
        assert some.process_set_id is not None
        assert some.process_set_id < 10, "numbers of removed sets are used again"
        assert hvd.remove_process_set(some)
    works()


def renewed(sets: list[hvd.ProcessSet]) -> None:
    """A new world that has ``sets`` from the start."""
    hvd.shutdown()
    hvd.init(process_sets=sets)


@CASES.add
def static_sets() -> None:
    if hvd.size() < 3:
        return
    n = hvd.size()
    first = hvd.ProcessSet([0])
    # The order inside a set does not matter.
    rest = hvd.ProcessSet(range(1, n) if hvd.rank() else reversed(range(1, n)))
    hvd.shutdown()
    for duplicates in ([first, rest, hvd.ProcessSet([0])], [first, rest, hvd.ProcessSet(range(n))]):
        with pytest.raises(ValueError, match=r"process_sets\[2\] .* is a duplicate"):
            hvd.init(process_sets=duplicates)
        assert hvd.is_initialized()
    hvd.init(process_sets=[first, rest])
    assert [first.process_set_id, rest.process_set_id] == [1, 2]
    assert registered() == {0: world(), 1: [0], 2: world()[1:]}
    assert hvd.global_process_set.ranks == world()
    members = first if hvd.rank() == 0 else rest
    assert_reduced(
        hvd.allreduce(mine((9,), torch.float32), op=hvd.Sum, process_set=members),
        (9,),
        torch.float32,
        hvd.Sum,
        members,
    )
    with pytest.raises(KeyError):
        hvd.init(process_sets=[hvd.ProcessSet([0, 1])])
    dynamic = hvd.add_process_set([0, 1])
    assert dynamic.process_set_id == 3
    hvd.shutdown()
    assert [each.process_set_id for each in (first, rest, dynamic)] == [None, None, None]
    hvd.init(process_sets=[rest, first])
    with pytest.raises(TypeError):
        hvd.allreduce(torch.ones(1), process_set=dynamic)
    assert [first.process_set_id, rest.process_set_id] == [2, 1]
    works()
    renewed([])


@CASES.add
def sets_can_be_added_only_where_that_was_asked_for() -> None:
    if hvd.size() == 1:
        return
    before = os.environ.pop("HOROVOD_DYNAMIC_PROCESS_SETS")
    try:
        some = hvd.ProcessSet([0])
        renewed([some])
        for refused in (lambda: hvd.add_process_set([1]), lambda: hvd.remove_process_set(some)):
            with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
                refused()
        hvd.shutdown()
        hvd.init(process_sets="Dynamic")
        assert os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] == "1"
        assert hvd.remove_process_set(hvd.add_process_set([1]))
        # Elastic training forms its next worlds by itself: scripts cannot ask it again.
        hvd.shutdown()
        hvd.init()
        assert hvd.remove_process_set(hvd.add_process_set([1]))
    finally:
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = before
        renewed([])
    works()
