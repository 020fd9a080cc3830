"""A rank for `test_script_ends`: the way that its first argument names is how rank 1 ends."""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
import threading
from typing import Any

import numpy as np

RANK = int(os.environ["HOROVOD_RANK"])
HOW = sys.argv[1].removeprefix("forked, ")
FORKED = sys.argv[1] != HOW

if RANK == 1 and HOW == "import":
    raise ImportError("no module of that name")
if RANK == 1 and HOW == "before":
    with open(sys.argv[2], "rb") as gate:  # rank 0 waits for us
        gate.read()
    sys.exit(4)

from horovod import _core  # noqa: E402
from horovod.bootstrap.store.client import StoreClient  # noqa: E402
from horovod.errors import HorovodInternalError  # noqa: E402
from horovod.runtime import lifecycle  # noqa: E402

if RANK == 0 and HOW == "before":
    # Who fails before anybody waits ends the job at once. So the launcher has to know that this rank waits.
    watch = StoreClient.watch

    def watch_and_open_gate(store: StoreClient, scope: str, rank: int = -1, host: str = "") -> None:
        watch(store, scope, rank, host)  # the launcher's store has answered
        with open(sys.argv[2], "wb"):
            pass

    StoreClient.watch = watch_and_open_gate  # type: ignore[assignment,method-assign]


def allreduce(name: str) -> None:
    engine: Any = lifecycle.current().engine
    array = np.ones(3)
    at = array.ctypes.data
    engine.submit(_core.ALLREDUCE, name, (at, at, 9, (3,)), 1, 1.0, 1.0, 0, 0, _core.BLOCKING)


def fail() -> None:
    raise ValueError("boom \x1b[31m" + "x" * 9000 + os.environ["HOROVOD_SECRET_KEY"])


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def end() -> None:
    if HOW == "raise speechless":
        raise Speechless
    if HOW == "raise":
        fail()
    elif HOW == "slowly":
        atexit.register(threading.Event().wait, 60)
        fail()
    elif HOW == "orderly":
        atexit.register(lifecycle.stop)
        fail()
    elif HOW == "exit":
        try:
            sys.exit(9)  # caught: no cause
        except SystemExit:
            sys.exit(3)
    elif HOW == "status":
        raise SystemExit(3)
    elif HOW in ("well", "well, caught"):
        sys.exit(0)
    elif HOW == "at once":
        os._exit(5)
    elif HOW == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "thread":
        threading.excepthook = leave
        threading.Thread(target=fail).start()
        threading.Event().wait(60)


def go_on_in_a_child() -> None:
    """This process has a world of its own first; then a child takes its place in that of the job."""
    lifecycle.start(environ={})
    lifecycle.stop()
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def leave(arguments: threading.ExceptHookArgs) -> None:
    """What scripts do so that no rank goes on without one of its threads."""
    told(arguments)
    os._exit(6)


told = threading.excepthook

if RANK == 1 and HOW == "in init":
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
if FORKED:
    go_on_in_a_child()
caught = False
try:
    lifecycle.start()
    told = threading.excepthook
    allreduce("first")
    if RANK == 1:
        end()
    allreduce("loss")
except HorovodInternalError as error:
    seen = {name: getattr(error, name, None) for name in ("rank", "host", "tensor", "missing")}
    print(
        type(error).__name__, seen["rank"], seen["host"], seen["tensor"], seen["missing"], error, flush=True
    )
    caught = HOW in ("exit", "status", "well, caught", "before")
    if not caught:
        raise
if caught:
    sys.exit(9)  # as a script may that says by itself what went wrong
