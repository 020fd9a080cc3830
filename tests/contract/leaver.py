"""A rank for `test_finished_before_loss`: does what each line of its standard input says, and confirms it.

``twice``: an operation, and the same again. ``begin``: submits one operation, and does not wait. ``end``:
waits for it, and prints its first and last value or how it failed. ``all``: both, in one blocking call.
``give``: begins a broadcast of rank 0, for ``end``. ``die``: ends by a signal. ``leave``: ends the world, and
this process.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from horovod import _core
from horovod.errors import HorovodInternalError
from horovod.runtime import lifecycle


def main() -> None:
    count = int(sys.argv[1])
    engine = lifecycle.start().engine
    values = np.full(count, int(os.environ["HOROVOD_RANK"]) + 1.0, np.float32)
    result = np.zeros_like(values)

    def submit(name: str, mode: int, kind: int = _core.ALLREDUCE) -> int:
        ends = (values.ctypes.data, result.ctypes.data, _core.FLOAT32, values.shape)
        handle: int = engine.submit(kind, name, ends, _core.SUM, 1.0, 1.0, 0, 0, mode)
        return handle

    handle = 0
    for line in sys.stdin:
        word = line.strip()
        said = word
        try:
            if word == "twice":
                for _ in range(2):
                    submit("known", _core.BLOCKING)
                result[:] = 0.0
            elif word == "begin":
                handle = submit("last", _core.ASYNCHRONOUS)
            elif word == "give":
                handle = submit("last", _core.ASYNCHRONOUS, _core.BROADCAST)
            elif word == "leave":
                lifecycle.stop()
                return
            elif word == "end":
                engine.wait(handle)
                said = f"got {result[0]} {result[-1]}"
            elif word == "all":
                submit("known", _core.BLOCKING)
                said = f"got {result[0]} {result[-1]}"
            elif word == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        except HorovodInternalError as error:
            said = f"{type(error).__name__}: {error}"
        print(said, flush=True)


main()
