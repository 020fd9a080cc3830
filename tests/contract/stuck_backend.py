"""A backend whose allreduce is stuck on rank 0, abort() or not, and writes when everybody has given it up.

``main`` is one of two ranks over it. Nothing that lives may be what the late write hits.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from tests.contract.idle_backend import Idle

COUNT = 1_000_000
LIMIT_S = 30.0

released = threading.Event()
wrote = threading.Event()


class Stuck(Idle):
    def allreduce(self, data: memoryview, dtype: int, op: int) -> None:
        if self._rank == 0:
            mine = np.frombuffer(data, np.float32)
            assert released.wait(LIMIT_S)
            mine[:] = 7.0
            wrote.set()


def given_up() -> AbstractContextManager[object]:
    """On rank 0 what is inside fails."""
    return pytest.raises(Exception, match=r"allreduce|rank 1") if on_rank_0() else nullcontext()


def on_rank_0() -> bool:
    return os.environ["HOROVOD_RANK"] == "0"


def of_torch() -> list[Any]:
    import torch

    import horovod.torch as hvd

    hvd.init()
    with given_up():
        hvd.allreduce(torch.ones(COUNT), name="x", op=hvd.Sum)
    return [torch.ones(COUNT) for _ in range(8)]


def of_tensorflow() -> list[Any]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    with given_up():
        hvd.allreduce(tf.ones(COUNT) * 1.0, name="x", op=hvd.Sum)
    return [tf.ones(COUNT) for _ in range(8)]


def main(framework: str) -> None:
    others = {"torch": of_torch, "tensorflow": of_tensorflow}[framework]()
    if on_rank_0():
        released.set()
        assert wrote.wait(LIMIT_S)
    assert [float(np.asarray(each).max()) for each in others] == [1.0] * len(others)
    print("nothing was hit", flush=True)
    os._exit(0)  # nobody waits for the other one
