"""init, shutdown and what is allowed in between. Every case leaves an initialised world behind."""

from __future__ import annotations

import os
import time
import weakref

import pytest
import torch
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases
from tests.held import held, left_since

import horovod.torch as hvd
from horovod.common.process_sets import global_process_set
from horovod.errors import MismatchError

CASES = Cases()


def works() -> None:
    assert_same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


@CASES.add
def topology_is_what_the_launcher_says() -> None:
    assert hvd.is_initialized()
    for place in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        assert getattr(hvd, place)() == int(os.environ[f"HOROVOD_{place.upper()}"]), place
    sizes = hvd.allgather_object(hvd.local_size(), name="l.local_sizes")
    assert hvd.mpi_ops.is_homogeneous() is (len(set(sizes)) == 1)
    assert hvd.gloo_enabled() is True
    assert hvd.mpi_enabled() is False
    assert global_process_set.ranks == list(range(hvd.size()))
    assert global_process_set.size() == hvd.size()
    assert global_process_set.rank() == hvd.rank()
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}


@CASES.add
def a_second_init_changes_nothing() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="l.second", op=hvd.Sum)
    hvd.init()
    hvd.init([])
    assert_same(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))


@CASES.add
def a_handle_of_an_ended_world_takes_nothing_from_the_next() -> None:
    old = hvd.allreduce_async(torch.ones(3), name="l.old", op=hvd.Sum)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    new = hvd.broadcast_async(torch.full((2,), 7.0), 0, name="l.new")
    with pytest.raises(ValueError, match="not created or has been cleared"):
        hvd.poll(old)
    assert hvd.synchronize(old) is None
    assert_same(hvd.synchronize(new), torch.full((2,), 7.0))


def failing(name: str) -> Exception:
    """An error, with the frames of the call that it passed: between ranks, if there are several."""
    alone = hvd.size() == 1
    with pytest.raises(ValueError if alone else MismatchError) as caught:
        hvd.allreduce(torch.ones(1 + hvd.rank()), name=name, op=17 if alone else hvd.Sum)
    return caught.value


@CASES.add
def nothing_of_a_world_stays_whatever_became_of_its_handles() -> None:
    hvd.shutdown()
    before = held()
    hvd.init()
    everybody = hvd.size()
    large = torch.ones(300_000)
    tensors = [torch.ones(3), large, torch.ones(hvd.size(), 2)]
    handles = [
        hvd.allreduce_async(tensors[0], name="l.left"),
        hvd.allreduce_async_(large, name="l.left.large"),
        hvd.grouped_allreduce_async([torch.ones(3), torch.ones(2)], name="l.left.group"),
        hvd.allgather_async(torch.ones(70_000), name="l.left.gathered"),
        hvd.alltoall_async(tensors[2], name="l.left.alltoall"),
        hvd.reducescatter_async(torch.ones(hvd.size()), name="l.left.scattered", op=hvd.Sum),
        hvd.broadcast_async(torch.ones(2), 0, name=f"l.never.{hvd.rank()}"),
    ]
    hvd.allgather_object({"rank": hvd.rank()}, name="l.left.object")
    error = failing("l.left.error")
    result = hvd.allreduce(torch.ones(3), op=hvd.Sum)
    hvd.barrier()
    watched = [weakref.ref(tensor) for tensor in tensors]
    hvd.shutdown()
    assert not left_since(before)
    del large, tensors
    assert [each() for each in watched] == [None] * len(watched)
    assert error.__traceback__ is not None
    assert_same(result, torch.full((3,), float(everybody)))
    for handle in handles:
        assert hvd.poll(handle)
        with pytest.raises(hvd.HorovodInternalError, match="shut down"):
            hvd.synchronize(handle)
        assert hvd.synchronize(handle) is None
    hvd.init()
    works()


@CASES.add
def after_shutdown_nothing_works_until_init() -> None:
    me, everybody = hvd.rank(), hvd.size()
    gathered = hvd.allgather(torch.full((1,), float(me)))
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert global_process_set.ranks == []
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size):
        with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd.init\(\)\."):
            question()
    for call in (
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.allgather(torch.ones(1)),
        lambda: hvd.broadcast(torch.ones(1), 0),
        hvd.barrier,
    ):
        with pytest.raises(ValueError, match=r"use hvd\.init") as caught:
            call()
        assert not isinstance(caught.value, hvd.HorovodInternalError)
    hvd.shutdown()
    # Results outlive the world that made them.
    assert gathered.tolist() == [float(rank) for rank in range(everybody)]
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (me, everybody)
    works()


@CASES.add
def pending_operations_fail_when_somebody_shuts_down() -> None:
    """Rank 0 leaves; what the others have pending fails, and they can come back together."""
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        hvd.shutdown()
    else:
        # Whether the news arrives before or after the submission is up to timing.
        with pytest.raises(hvd.HorovodInternalError, match="shut down"):
            hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="l.pending"))
        assert hvd.is_initialized()
        with pytest.raises(hvd.HorovodInternalError, match="shut down"):
            hvd.allreduce(torch.ones(2))
        hvd.shutdown()
    hvd.init()
    works()


@CASES.add
def handles_of_an_earlier_world() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name=f"l.old.{hvd.rank()}")
    hvd.barrier()
    hvd.shutdown()
    try:
        hvd.synchronize(handle)
    except (hvd.HorovodInternalError, ValueError):
        pass
    handle = 10**6
    hvd.init()
    assert hvd.synchronize(handle) is None
    works()


@CASES.add
def unnamed_operations_pair_again_after_init() -> None:
    if hvd.rank() == 0:
        # An extra submission would shift the pairing of unnamed operations for the rest of this world.
        hvd.allreduce_async(torch.ones(1))
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    works()


@CASES.add
def a_hundred_worlds_in_one_process() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    begin = time.monotonic()
    for _ in range(100):
        hvd.shutdown()
        hvd.init()
    print(f"100 worlds of {hvd.size()}: {time.monotonic() - begin:.2f} s", flush=True)
    works()
    assert open_files() <= before + 2
