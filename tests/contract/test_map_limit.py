"""A rank that cannot map what another one shares (``ulimit -v``) ends the operation for all alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import ctypes, json, os, resource
import numpy as np
from horovod import _core
from horovod.runtime import lifecycle
from horovod.errors import HorovodInternalError
from horovod.collectives.numpy_frontend import NumpyFrontend

COUNT = 1 << 20
rank = int(os.environ["HOROVOD_RANK"])
engine = lifecycle.start().engine


def allreduce(name, array):
    at = array.ctypes.data
    engine.submit(_core.ALLREDUCE, name, (at, at, 9, array.shape), 1, 1.0, 1.0, 0, 0, _core.BLOCKING)


def shared():
    owner = NumpyFrontend().from_dlpack(engine.empty(9, (COUNT,), shared=True), np.empty(0))
    array = np.ctypeslib.as_array((ctypes.c_double * COUNT).from_address(owner.ctypes.data))
    array[:] = 1.0
    return owner, array


if rank == 1:  # too little for the heap of another rank, enough for all else
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30),) * 2)
    try:
        shared()
    except MemoryError:
        print("refused", flush=True)  # who cannot look into the memory of others shares none
owner, array = shared() if rank == 0 else (None, np.full(COUNT, 1.0))
try:
    allreduce("first", np.ones(3))
    allreduce("gradients", array)
except HorovodInternalError as error:
    print("told", json.dumps([rank, error.rank, error.host, error.tensor, str(error)]), flush=True)
    raise
"""


def test_memory_that_one_rank_cannot_map_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "share.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "3", "--failure-patience", "20"]
    done = subprocess.run(
        [*command, sys.executable, str(path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[1]<stdout>:refused" in done.stdout
    told = [json.loads(line.partition("told ")[2]) for line in done.stdout.splitlines() if "told " in line]
    assert sorted(each[0] for each in told) == [0, 1, 2], done.stdout + done.stderr
    for _, rank, host, tensor, text in told:
        assert (rank, host, tensor) == (1, "localhost", "allreduce.gradients")
        assert text.startswith("rank 1 on host localhost: allreduce.gradients: Mapping 8")
        assert "bytes of address space for tensors in shared memory (limited by `ulimit -v`?" in text
    assert "horovodrun: rank 1 on localhost exited with status 1" in done.stderr, done.stderr
