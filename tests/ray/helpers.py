"""What the tests of Ray have in common."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import ray

import horovod.arrays as hvd
from horovod.bootstrap.place.proc import stat_of
from horovod.ray import RayExecutor
from horovod.ray.runner import MiniSettings

_shared: list[RayExecutor] = []


def settings(**more: Any) -> MiniSettings:
    return RayExecutor.create_settings(**{"timeout_s": 120, "placement_group_timeout_s": 300, **more})


def place() -> tuple[int, int, int, int, int, int]:
    hvd.init()
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()


def summed(value: float) -> float:
    hvd.init()
    return float(hvd.allreduce(np.full(3, value + hvd.rank()), op=hvd.Sum)[0])


def await_end(pids: Iterable[int], limit_s: float = 20.0) -> None:
    """Fail unless these processes end within seconds."""
    until = time.monotonic() + limit_s
    while left := [pid for pid in pids if (stat := stat_of(pid)) is not None and stat.state != "Z"]:
        assert time.monotonic() < until, left
        time.sleep(0.05)  # of processes that are not our children no event tells


def await_free(cpus: float, limit_s: float = 20.0) -> None:
    """Fail unless so many CPUs are free within seconds."""
    until = time.monotonic() + limit_s
    while ray.available_resources().get("CPU", 0.0) < cpus:
        assert time.monotonic() < until, ray.available_resources()
        time.sleep(0.05)  # Ray tells nobody


def shared() -> RayExecutor:
    """One of two ranks for tests after which they are as before, as actors take a while to start."""
    if not _shared:
        _shared.append(RayExecutor(settings(), num_workers=2))
        _shared[0].start(extra_env_vars={"OWN": 7, "HOROVOD_CYCLE_TIME": 2})
    return _shared[0]


def release() -> None:
    """Let that one go, where all the room is needed."""
    while _shared:
        _shared.pop().shutdown()
