"""Timing one blocking call over all ranks, and how much other programs disturbed it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

import torch

from horovod.bench.result import Timing
from horovod.bootstrap.place.control_groups import PROC
from horovod.bootstrap.place.proc import lines

__all__ = ["Team", "busy_cpu_s", "measure", "wait_for_quiet"]


class Team(Protocol):
    """The ranks that measure together, and how they agree."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Return after all ranks arrived."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of a float32 tensor."""


def busy_cpu_s() -> float:
    """CPU seconds that the whole machine has spent working since it started."""
    fields = lines(PROC / "stat")[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(limit_cpus: float, patience_s: float, look_s: float = 0.3) -> float:
    """Wait until other programs use at most `limit_cpus`; return what they used last."""
    deadline = time.monotonic() + patience_s
    while True:
        before, own = busy_cpu_s(), time.process_time()
        time.sleep(look_s)
        used = max(0.0, busy_cpu_s() - before - (time.process_time() - own)) / look_s
        if used <= limit_cpus or time.monotonic() >= deadline:
            return used


def measure(
    team: Team, call: Callable[[], object], *, min_time_s: float, max_calls: int, between: bool = False
) -> Timing:
    """Time `call` in steady state, equally often on every rank.

    Args:
        min_time_s: time that the calls together should take; there are at least five.
        between: start every call after a barrier, so that no rank runs ahead.
    """
    for _ in range(2):
        call()
    team.barrier()
    started = time.perf_counter()
    for _ in range(3):
        call()
    estimate = torch.full((1,), (time.perf_counter() - started) / 3)
    once_s = max(1e-7, team.total(estimate).item() / team.size)
    calls = int(min(max_calls, max(5, min_time_s / once_s)))
    times = torch.zeros(team.size, calls)
    clock = time.perf_counter
    spent = [0.0] * calls
    team.barrier()
    before, own, began = busy_cpu_s(), time.process_time(), clock()
    for i in range(calls):
        if between:
            team.barrier()
        start = clock()
        call()
        spent[i] = clock() - start
    team.barrier()
    own_s = team.total(torch.full((1,), time.process_time() - own)).item()
    others = max(0.0, busy_cpu_s() - before - own_s) / max(1e-3, clock() - began)
    times[team.rank] = torch.tensor(spent)
    worst = team.total(times.view(-1)).view(team.size, calls).amax(0).double()
    return Timing(
        median_s=worst.median().item(),
        p99_s=worst.quantile(0.99).item(),
        min_s=worst.min().item(),
        calls=calls,
        others_cpus=others,
    )
