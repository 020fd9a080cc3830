"""Worlds and process sets of communicators, as 4 processes of mpirun see them. Rank 0 says "done" at the end.

No variable of the launcher is needed: what is known comes from MPI.
"""

from __future__ import annotations

import os

import pytest
import torch
from mpi4py import MPI

import horovod.torch as hvd
from horovod.common.process_sets import global_process_set

WORLD = MPI.COMM_WORLD
ME = WORLD.Get_rank()


def total(process_set: hvd.ProcessSet = global_process_set) -> float:
    """Sum of the ranks in MPI of the members."""
    return float(hvd.allreduce(torch.tensor([float(ME)]), op=hvd.Sum, process_set=process_set))


def end() -> None:
    """Shut down when nobody has anything pending: a shutdown fails what is not complete on other ranks."""
    hvd.barrier()
    hvd.shutdown()


def split_sets() -> None:
    halves = WORLD.Split(ME % 2)
    mine, first = hvd.ProcessSet(halves), hvd.ProcessSet([0, 1])
    assert (mine.ranks, mine.included()) == (None, None)
    hvd.init(WORLD, process_sets=[mine, first])
    assert hvd.mpi_enabled()
    assert hvd.mpi_threads_supported() is (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    assert (hvd.rank(), hvd.size()) == (ME, 4)
    assert global_process_set.mpi_comm == global_process_set.mpi_comm
    assert MPI.Comm.Compare(global_process_set.mpi_comm, WORLD) == MPI.CONGRUENT
    assert (mine.ranks, mine.mpi_comm) == ([ME % 2, ME % 2 + 2], halves)
    assert (mine.process_set_id, first.process_set_id) == (1 + ME % 2, 3)
    assert total() == 6
    assert total(mine) == 2 + 2 * (ME % 2)
    with pytest.raises(NotImplementedError):
        hvd.add_process_set(hvd.ProcessSet(halves))
    end()


def duplicates() -> None:
    halves = WORLD.Split(ME % 2)
    for sets in ([halves, [0, 2]], [WORLD.Dup()], [halves, halves.Dup()]):
        with pytest.raises(ValueError, match="duplicate"):
            hvd.init(WORLD, process_sets=[hvd.ProcessSet(each) for each in sets])
        assert hvd.is_initialized()
        end()


def worlds_of_some() -> None:
    """The world is the communicator's, in its order: two at once, and one with a set of nobody's."""
    pairs = WORLD.Split(ME // 2, key=-ME)
    hvd.init(pairs)
    assert (hvd.rank(), hvd.size()) == (1 - ME % 2, 2)
    assert total() == (1 if ME < 2 else 5)
    end()

    first = WORLD.Split(0 if ME < 2 else MPI.UNDEFINED)
    some = hvd.ProcessSet(first)
    hvd.init(WORLD, process_sets=[some])
    assert some.process_set_id == (1 if ME < 2 else None)
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 1]}
    end()
    if ME >= 2:
        with pytest.raises(ValueError, match="COMM_NULL"):
            hvd.init(first)


def lists_of_ranks() -> None:
    os.environ["HOROVOD_CONTROLLER"] = "mpi"
    if ME in (1, 3):
        hvd.init([3, 1])
        assert (hvd.rank(), hvd.size()) == ([3, 1].index(ME), 2)
        assert total() == 4
        end()
    else:
        with pytest.raises(ValueError, match="rank"):
            hvd.init([3, 1])


def main() -> None:
    for name in [name for name in os.environ if name.startswith(("OMPI_COMM", "PMIX_"))]:
        del os.environ[name]
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    assert hvd.mpi_built()
    assert not hvd.mpi_enabled()
    for case in (split_sets, duplicates, worlds_of_some, lists_of_ranks):
        case()
        WORLD.Barrier()
    if ME == 0:
        print("done", flush=True)


if __name__ == "__main__":
    main()
