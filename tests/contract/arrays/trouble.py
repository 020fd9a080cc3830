"""One rank of a job in which something goes wrong with a device. The argument says what.

Prints ``fine`` at its end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
from tests.contract.arrays.values import CHUNK, everyone, mine, same

import horovod.arrays as hvd
from horovod.errors import PeerLostError

LIMIT_S = 20.0
KEPT: list[Any] = []  # until the interpreter ends


def array(count: int = 4 * CHUNK + 3) -> Any:
    from tests.fakes import arrays as device

    return device.array(mine(hvd.rank(), count))


def killed() -> None:
    """The last rank is killed while the others are amid a collective; they name it, and soon."""
    from tests.fakes import arrays as device

    hvd.allreduce(array(), op=hvd.Sum)
    mine_again = array()
    if hvd.rank() == hvd.size() - 1:
        with device.holding(mine_again.stream):  # its part never comes
            mine_again.add(1.0)
            hvd.allreduce_async_(mine_again, op=hvd.Sum, name="never")
            hvd.allgather_async(array(100), name="also.never")
            limit = time.monotonic() + LIMIT_S
            others = [f"{os.environ['KILL_NOW']}.{rank}" for rank in range(hvd.rank())]
            while not all(map(os.path.exists, others)) and time.monotonic() < limit:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
    handles = [
        hvd.allreduce_async_(mine_again, op=hvd.Sum, name="never"),
        hvd.allgather_async(array(100), name="also.never"),
    ]
    open(f"{os.environ['KILL_NOW']}.{hvd.rank()}", "w").close()
    begin = time.monotonic()
    for handle in handles:
        with pytest.raises(PeerLostError, match=f"ank {hvd.size() - 1}") as info:
            hvd.synchronize(handle)
        assert info.value.rank == hvd.size() - 1
    assert time.monotonic() - begin < 5.0
    mine_again.add(1.0)  # the array's stream goes on
    mine_again.numpy()


def forked() -> None:
    """A child of a process that has used the device ends quietly, and may compute on the host."""
    given = array()
    hvd.allreduce_(given, op=hvd.Sum)

    def child() -> None:
        with pytest.raises(hvd.HorovodInternalError, match="fork"):
            hvd.allreduce(np.zeros(3))
        sys.exit(7)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 7, process.exitcode
    same(hvd.allreduce(given, op=hvd.Max), everyone(4 * CHUNK + 3).sum(0), given)


def new_worlds() -> None:
    """Shut down and begin again, with arrays of before, as elastic training does."""
    from tests.fakes import arrays as device

    given = array(1000)
    for world in range(4):
        same(hvd.allreduce(given, op=hvd.Max), everyone(1000).max(0), given)
        with contextlib.suppress(hvd.HorovodInternalError):  # another rank was faster
            hvd.allreduce_async(array(), name="abandoned")
        hvd.shutdown()
        given.add(1.0).add(-1.0)
        if world == 1:
            before = device.counters()
        hvd.init()
    same(hvd.allgather(given), everyone(1000).reshape(-1), given)
    hvd.shutdown()
    after = device.counters()
    assert after.streams <= before.streams, (after.streams, before.streams)
    assert after.pinned <= before.pinned, (after.pinned, before.pinned)
    hvd.init()


def ends() -> None:
    """The script ends while operations are under way, and results lie undelivered."""
    for number in range(3):
        KEPT.append(array())
        hvd.allreduce_async_(KEPT[-1], name=f"under.way.{number}", op=hvd.Sum)
    hvd.allgather_async(array(1000), name="rows")
    hvd.barrier()
    print("fine", flush=True)
    sys.exit(0)


def captured() -> None:
    from tests.fakes import arrays as device

    given = array(5)
    given.stream.synchronize()
    device.driver().library.fakeCudaBeginCapture(given.stream.raw)
    for call in (hvd.allreduce_, hvd.allreduce_async_, hvd.allgather):
        refused(call, given, "its stream is being captured into a graph")
    device.driver().library.fakeCudaEndCapture(given.stream.raw)
    same(hvd.allreduce(given, op=hvd.Sum), everyone(5).sum(0), given)


class Claim:
    """An array that claims to lie on a device."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.__cuda_array_interface__ = {
            "shape": (2,),
            "typestr": "<f4",
            "data": (1 << 40, False),
            "version": 3,
            "stream": 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device


def refused(call: Any, given: Any, text: str) -> None:
    with pytest.raises((ValueError, hvd.HorovodInternalError), match=re.escape(text)):
        call(given)


def no_driver() -> None:
    refused(hvd.allreduce_, Claim(), "the driver of the device (libcuda.so.1) cannot be loaded")
    same(hvd.allreduce(np.ones(2), op=hvd.Max), np.ones(2), np.ones(2))


def no_device() -> None:
    refused(hvd.allreduce_, Claim(), "does not start: CUDA_ERROR_NO_DEVICE")
    same(hvd.allreduce(np.ones(2), op=hvd.Max), np.ones(2), np.ones(2))


def no_such_device() -> None:
    refused(hvd.allreduce_, Claim(5), "there is no such device: the driver shows this process 1 device")


def no_pinned_memory() -> None:
    refused(hvd.allreduce_, array(4), "no pinned host memory")
    same(hvd.allreduce(np.ones(2), op=hvd.Max), np.ones(2), np.ones(2))


def broken() -> None:
    """A kernel has failed on the last rank: all ranks hear of it."""
    from tests.fakes import arrays as device

    given = array()
    hvd.allreduce_(given, op=hvd.Sum)
    given.stream.synchronize()
    with contextlib.ExitStack() as held:
        if hvd.rank() == hvd.size() - 1:
            held.enter_context(device.holding(given.stream))
            given.add(1.0)
        handle = hvd.allreduce_async_(given, name="broken")
        if hvd.rank() == hvd.size() - 1:
            device.driver().library.fakeCudaBreak(0, 719)
    with pytest.raises(hvd.HorovodInternalError, match="LAUNCH_FAILED"):
        hvd.synchronize(handle)
    print("fine", flush=True)
    os._exit(0)


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]]()
    print("fine", flush=True)
    if sys.argv[1] != "killed":
        hvd.shutdown()
