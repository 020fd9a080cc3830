"""Reports about processes, threads and signals around a rank."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import torch
from tests.contract.world import Cases
from torch.utils.data import DataLoader, IterableDataset

import horovod.torch as hvd

CASES = Cases()


def total() -> float:
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())


class Dealt(IterableDataset[int]):
    """Every rank reads its own numbers, as it finds out in the worker of the loader."""

    def __iter__(self) -> Iterator[int]:
        rank, size = (hvd.rank(), hvd.size()) if hvd.is_initialized() else (0, 1)
        yield from range(rank, 6, size)


@CASES.add
def workers_of_a_loader_know_the_rank() -> None:
    """PyTorch: data sets asked for the rank in a forked worker; all ranks read the same samples, or the
    worker died."""
    loader = DataLoader(Dealt(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [int(number) for number in loader] == list(range(hvd.rank(), 6, hvd.size()))
    assert total() == hvd.size()


@CASES.add
def a_forked_child_ends_as_python_does() -> None:
    """Open MPI: a fork after init, and the child's exit handlers took the parent's connections down."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            atexit._run_exitfuncs()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(0,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert total() == hvd.size()


@CASES.add
def a_program_that_a_rank_starts_does_not_take_its_place() -> None:
    """brainiak under mpiexec: spawned children had the rank's environment, joined as that rank, and all
    hung."""
    if hvd.rank() == 0:
        child = subprocess.run(
            [sys.executable, "-c", "from horovod.common.basics import HorovodBasics as H; H().init()"],
            capture_output=True,
            text=True,
            timeout=25,
        )
        assert child.returncode == 1
        assert "Two processes say that they are rank 0" in child.stderr
        assert "need hvd.init() below if __name__ == '__main__'" in child.stderr
    assert total() == hvd.size()


@CASES.add
def a_signal_handler_may_use_a_collective() -> None:
    """Lightning on Slurm: the handler that saves a checkpoint ran while the training waited in a
    collective."""
    sums: list[float] = []

    def handler(*_: object) -> None:
        sums.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="in_handler").item())

    before = signal.signal(signal.SIGALRM, handler)
    try:
        if hvd.rank() == 0:
            # Comes while this rank waits; the others answer before they come to what it waits for.
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            handler()
        hvd.allreduce(torch.ones(1), name="of_the_loop")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sums == [hvd.size()]


@CASES.add
def in_an_event_loop_and_beside_it() -> None:
    """Ray, vLLM: collectives within asyncio, in the loop and in its executor."""

    async def both() -> float:
        beside = await asyncio.get_running_loop().run_in_executor(None, total)
        return beside + total()

    assert asyncio.run(both()) == 2 * hvd.size()
