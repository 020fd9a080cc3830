"""One rank of a world that will lose a member: works without end, and says how it ended.

Run with the launch environment set. Prints ``ready`` after its first operation, then one JSON line when its
world fails: the exception's type, ``rank`` and text, and the monotonic time at which it was raised.
With ``--child`` a forked child outlives the fork for as long as standard input stays open: a dead rank's
sockets stay open in it unless the library takes care.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time

import numpy as np

from horovod import _core
from horovod.collectives.numpy_frontend import NumpyFrontend
from horovod.runtime import lifecycle


def submit(
    engine: _core.Engine, values: np.ndarray, name: str, waited: bool, kind: int = _core.ALLREDUCE
) -> int:
    address = values.ctypes.data
    handle: int = engine.submit(
        kind,
        name,
        (address, 0 if kind == _core.ALLGATHER else address, _core.FLOAT32, values.shape),
        _core.SUM,
        1.0,
        1.0,
        0,
        0,
        _core.AWAITED if waited else _core.ASYNCHRONOUS,
    )
    return handle


def work(engine: _core.Engine, seed: int) -> None:
    sizes = np.random.default_rng(seed)  # the same sizes on every rank
    shared = os.environ["HOROVOD_TRANSPORT_GROUPS"] != "single"

    def zeros(count: int, where: int, owners: list[np.ndarray]) -> np.ndarray:
        """In private memory, or in memory that the ranks share, whose owner is added to ``owners``."""
        if not shared or where % 2:
            return np.zeros(count, np.float32)
        made = NumpyFrontend().from_dlpack(
            engine.empty(_core.FLOAT32, (count,), shared=True), np.empty(0, np.float32)
        )
        owners.append(made)
        writable: np.ndarray = np.ctypeslib.as_array((ctypes.c_float * count).from_address(made.ctypes.data))
        writable[:] = 0.0
        return writable

    for step in range(1_000_000):
        owners: list[np.ndarray] = []
        tensors = [zeros(int(n), where, owners) for where, n in enumerate(sizes.integers(1, 400_000, 5))]
        kinds = (_core.ALLREDUCE, _core.ALLGATHER, _core.BROADCAST, _core.REDUCE, _core.ALLREDUCE)
        handles = [
            submit(engine, t, f"{step}.{i}", waited=False, kind=kind)
            for i, (t, kind) in enumerate(zip(tensors, kinds, strict=True))
        ]
        engine.wait_all(handles)
        engine.wait(submit(engine, np.zeros(1, np.float32), "small", waited=True))
        if step == 0:
            print("ready", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--child", action="store_true", help="fork a child that lives on after this rank's end"
    )
    args = parser.parse_args()
    engine = lifecycle.start().engine
    if args.child and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    try:
        work(engine, args.seed)
    except Exception as error:
        seen = time.monotonic()
        report = {
            "type": type(error).__name__,
            "rank": getattr(error, "rank", None),
            "text": str(error),
            "seen": seen,
        }
        print(json.dumps(report), flush=True)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
