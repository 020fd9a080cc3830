"""init, shutdown and what is allowed in between. Every case leaves an initialised world behind."""

from __future__ import annotations

import os
import time

import pytest
import torch
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.common.process_sets import global_process_set

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
        with pytest.raises(hvd.HorovodInternalError):
            call()
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
