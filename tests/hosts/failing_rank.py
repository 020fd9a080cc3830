"""One rank of a world that something will happen to: says when it is there, and how its world ended.

Run with the launch environment set and the phase as argument. Lines on standard output are JSON:
``{"event": "ready"}`` when the rank is in its phase, then ``{"event": "end"}`` with the exception and the
monotonic time at which it was raised, or with ``"type": null`` if there was none.

    init         the rank with HOROVOD_RANK=FAILING_VICTIM stands still while the world is formed, until a
                 line comes on standard input; for an hour if none can come
    negotiation  all but the victim wait for an operation that it does not submit
    small        allreduces of four bytes, one after another
    large        allreduces of 8 MiB, one after another
    shutdown     all but the victim call shutdown() when a line comes on standard input
    steady       allreduces of four bytes and of 256 KiB in turn, until rank 0 gets a line on standard input;
                 then the world ends well
    idle         nothing is under way; an operation is begun when a line comes on standard input
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from typing import Any

from horovod import _core
from horovod.bootstrap.mesh import connecting as mesh
from horovod.runtime import lifecycle

LARGE = 2 << 20  # elements
MUCH = 64 << 10


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def allreduce(engine: _core.Engine, name: str, buffer: Any, count: int) -> None:
    address = ctypes.addressof(buffer)
    tensor = address, address, _core.FLOAT32, (count,)
    engine.submit(_core.ALLREDUCE, name, tensor, _core.SUM, 1.0, 1.0, 0, 0, _core.BLOCKING)


def stand_still_in_init() -> None:
    """Before this rank connects: when all have said who they are, and some wait for it."""
    connect = mesh._Bootstrap._connect_network

    def slow(self: Any, *arguments: Any) -> Any:
        say("ready")
        if not sys.stdin.readline():  # nobody will ever write one, as under horovodrun
            time.sleep(3600)
        return connect(self, *arguments)

    mesh._Bootstrap._connect_network = slow  # type: ignore


def steady(engine: _core.Engine) -> None:
    """All stop at the same step: rank 0 says when, by what it adds."""
    first = os.environ["HOROVOD_RANK"] == "0"
    much = (ctypes.c_float * MUCH)()
    enough = (ctypes.c_float * 1)()
    while enough[0] == 0.0:
        allreduce(engine, "much", much, MUCH)
        enough[0] = float(first and bool(select.select([sys.stdin], [], [], 0.01)[0]))
        allreduce(engine, "enough", enough, 1)


def work(phase: str, victim: bool) -> None:
    if phase == "init" and victim:
        stand_still_in_init()
    engine = lifecycle.start().engine
    small = (ctypes.c_float * 1)(1.0)
    allreduce(engine, "begin", small, 1)
    if phase == "large":
        large = (ctypes.c_float * LARGE)()
        allreduce(engine, "large", large, LARGE)
    say("ready")
    if phase == "negotiation":
        if victim:
            time.sleep(3600)
        allreduce(engine, "owed", small, 1)
    while phase == "small":
        for _ in range(20):
            allreduce(engine, "small", small, 1)
        time.sleep(0.001)
    while phase == "large":
        allreduce(engine, "large", large, LARGE)
    if phase == "steady":
        steady(engine)
    if phase in ("shutdown", "idle") and not victim:
        sys.stdin.readline()
    if phase == "idle":
        allreduce(engine, "late", small, 1)
    if phase == "shutdown" and victim:
        time.sleep(3600)
    lifecycle.stop()


def main() -> int:
    phase = sys.argv[1]
    victim = os.environ["HOROVOD_RANK"] == os.environ.get("FAILING_VICTIM")
    try:
        work(phase, victim)
    except Exception as error:
        seen = time.monotonic()
        told = {
            name: getattr(error, name, None) for name in ("rank", "host", "tensor", "missing", "waited_s")
        }
        say("end", type=type(error).__name__, text=str(error), seen=seen, **told)
        return 3
    say("end", type=None, seen=time.monotonic())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
