"""One rank of a job whose ranks copy from each other's device memory. The argument says what happens.

Prints ``fine`` at its end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
from tests.contract.arrays.values import everyone, mine, same
from tests.fakes import arrays as device

import horovod.arrays as hvd
from horovod import observe
from horovod.errors import PeerLostError

#: float32 elements of a chunk in which bytes go from peer to peer.
CHUNK = (4 << 20) // 4


def array(count: int) -> Any:
    return device.array(mine(hvd.rank(), count))


def moves() -> None:
    """Whatever moves bytes goes that way, over buffers that are opened once; reductions do not."""
    for count in (1, 1000, 3 * CHUNK + 5):
        given = array(count)
        same(hvd.allgather(given), everyone(count).reshape(-1), given)
        same(hvd.broadcast(given, 0, name=f"b.{count}"), mine(0, count), given)
        same(hvd.alltoall(array(count * hvd.size())), swapped(count), given)
        same(hvd.allreduce(given, op=hvd.Sum), everyone(count).sum(0), given)
        assert device.counters().opened == hvd.size() - 1, device.counters().opened
    paths = observe.data_paths()
    assert paths["peer"][0] == 9, paths
    assert {name for name in paths if name.startswith("staged")} == {"staged.shm"}, paths


def swapped(count: int) -> np.ndarray[Any, Any]:
    whole = everyone(count * hvd.size())
    return whole[:, hvd.rank() * count : (hvd.rank() + 1) * count].reshape(-1)


def sets() -> None:
    """The buffers of a set are closed before anybody frees one: when all meet to remove it."""
    given = array(1000)
    hvd.allgather(given)
    first = device.counters()
    allocated = []
    for _ in range(10):
        pair = hvd.add_process_set([0, hvd.size() - 1])
        if pair.included():
            hvd.allgather(given, process_set=pair)
            assert device.counters().opened == first.opened + 1
        hvd.remove_process_set(pair)
        assert device.counters().opened == first.opened
        given.numpy()
        allocated.append(device.counters().allocated_bytes)
    assert allocated[-1] - allocated[1] < 1 << 20, f"the memory of buffers is used again: {allocated}"


def new_worlds() -> None:
    """Shut down and begin again, as elastic training does."""
    given = array(1000)
    opened = []
    for _ in range(4):
        same(hvd.allgather(given), everyone(1000).reshape(-1), given)
        opened.append(device.counters().opened)
        hvd.barrier()  # with the first one that leaves, the world ends
        hvd.shutdown()
        assert device.counters().opened == 0
        hvd.init()
    assert opened == [hvd.size() - 1] * 4, opened


def killed() -> None:
    """The last rank is killed amid chunks; the others name it, and soon, and their streams go on."""
    same(hvd.allgather(array(5)), everyone(5).reshape(-1), array(5))
    given = array(8 * CHUNK)
    if hvd.rank() == hvd.size() - 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    begin = time.monotonic()
    with pytest.raises(PeerLostError, match=f"ank {hvd.size() - 1}") as info:
        work_until(given, begin + 20.0)
    assert info.value.rank == hvd.size() - 1
    assert time.monotonic() - begin < 10.0
    given.add(1.0)  # the array's stream goes on
    given.numpy()


def work_until(given: Any, limit: float) -> None:
    while time.monotonic() < limit:
        hvd.broadcast_(given, 0, name="again")
        hvd.allgather(given)


def refused() -> None:
    """It cannot be: all ranks hear why and of whom, and no buffer is left."""
    with pytest.raises(hvd.HorovodInternalError, match=os.environ["EXPECTED"]) as info:
        hvd.allgather(array(10))
    assert "PEER was asked for (HOROVOD_GPU_OPERATIONS=PEER" in str(info.value), info.value
    assert device.counters().opened == 0
    assert device.counters().allocations <= 2  # the array, and what a pool keeps


if __name__ == "__main__":
    for name in ("CUDA_VISIBLE_DEVICES", "FAKE_CUDA_VERSION", "FAKE_CUDA_FAIL"):
        own = os.environ.get(f"{name}_OF_{os.environ['HOROVOD_RANK']}")
        if own is not None:
            os.environ[name] = own
    hvd.init()
    globals()[sys.argv[1]]()
    print("fine", flush=True)
    if sys.argv[1] not in ("killed", "refused"):
        hvd.barrier()
        hvd.shutdown()
