"""What a process holds, for tests that look for what an ended world leaves behind."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["held", "left_since"]


def held() -> set[str]:
    """Descriptors, threads and shared mappings of this process, one text each.

    Their numbers alone would not do: a thread that has been joined leaves the process a moment later, so one
    that is counted before may be gone after.
    """
    found = {f"thread {thread}" for thread in os.listdir("/proc/self/task")}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the list was read from
            found.add(f"descriptor {number}: {os.readlink(f'/proc/self/fd/{number}')}")
    return found.union(line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line)


def left_since(before: set[str], limit_s: float = 10.0) -> set[str]:
    """What this process holds and did not ``before``, as soon as that is nothing, or after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while (left := held() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
