"""Whether ranks read each other's memory: by default where the system allows it, never if switched off."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

import horovod

pytestmark = pytest.mark.timeout(120)


class _Part(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def may_read_others() -> bool:
    """Whether the system lets a process read another one of the same user, as ranks are to each other."""
    code = (
        "import ctypes, sys; b = ctypes.create_string_buffer(1); print(ctypes.addressof(b), flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        address = int(other.stdout.readline())
        mine = ctypes.create_string_buffer(1)
        here, there = _Part(ctypes.addressof(mine), 1), _Part(address, 1)
        libc = ctypes.CDLL(None, use_errno=True)
        moved: int = libc.process_vm_readv(
            other.pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), 0
        )
        other.stdin.close()
        other.wait(30)
    return moved == 1


def work(switched_off_on: tuple[int, ...]) -> dict[str, int]:
    import os

    if int(os.environ["HOROVOD_RANK"]) in switched_off_on:
        os.environ["HOROVOD_DIRECT_COPIES"] = "0"
    import torch

    import horovod.torch as hvd
    from horovod.observe import data_paths

    hvd.init(process_sets="dynamic")
    rows = 60_001 + hvd.rank()
    gathered = hvd.allgather(torch.full((rows, 2), float(hvd.rank())))
    expected = torch.cat([torch.full((60_001 + rank, 2), float(rank)) for rank in range(hvd.size())])
    assert torch.equal(gathered, expected)
    root = torch.arange(25_003.0)
    pair = hvd.add_process_set([0, 1])
    if hvd.rank() < 2:
        given = root if hvd.rank() == 1 else torch.zeros(25_003)
        assert torch.equal(hvd.broadcast(given, 1, process_set=pair), root)
    parts = torch.arange(hvd.size()).repeat_interleave(30_001) + 10 * hvd.rank()
    swapped = hvd.alltoall(parts)
    assert torch.equal(swapped, 10 * torch.arange(hvd.size()).repeat_interleave(30_001) + hvd.rank())
    return {path: operations for path, (operations, _) in data_paths().items()}


@pytest.mark.parametrize("switched_off_on", [(), (0,), (0, 1, 2)], ids=["on", "off_on_one", "off"])
def test_ranks_read_each_others_memory_unless_switched_off(switched_off_on: tuple[int, ...]) -> None:
    direct = may_read_others() and not switched_off_on
    for rank, paths in enumerate(horovod.run(work, (switched_off_on,), num_proc=3)):
        operations = 2 if rank == 2 else 3
        by_path = {path: paths.get(path, 0) for path in ("shm.direct", "shm.large")}
        if direct:
            assert by_path == {"shm.direct": operations, "shm.large": 0}
        else:
            assert by_path == {"shm.direct": 0, "shm.large": operations}
