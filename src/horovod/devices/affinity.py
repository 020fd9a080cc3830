"""The cores that the threads of this process may run on. Source: sched_setaffinity(2), proc(5)."""

from __future__ import annotations

import os
from collections.abc import Collection

__all__ = ["bind_threads"]


def bind_threads(cores: Collection[int], before: Collection[int]) -> str:
    """Bind those threads that may run on all of ``before``; who was bound otherwise stays. Threads and
    processes that are made later inherit it.

    Returns:
        Why it was not possible; empty if it was.
    """
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        return f"the system does not let this process choose its cores ({error.strerror})"
    for name in os.listdir("/proc/self/task"):
        try:
            if os.sched_getaffinity(int(name)) == set(before):
                os.sched_setaffinity(int(name), cores)
        except OSError:
            pass  # a thread that has ended
    return ""
