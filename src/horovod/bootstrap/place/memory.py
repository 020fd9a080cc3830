"""Memory that may still be taken before the kernel starts to end processes.

Reserving too much does not fail: the kernel ends processes to make room. So the free memory is checked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from horovod.bootstrap.place.control_groups import GROUPS, PROC, control_groups
from horovod.bootstrap.place.proc import lines, value_of

__all__ = ["available_bytes"]


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """The least that the machine and each control group (version 2) of this process have left; None if
    unknown.

    Source: proc(5), ``MemAvailable``; kernel documentation, cgroup-v2, ``memory.max`` and ``memory.stat``.
    """
    return min((*_machine(proc), *_control_groups(proc, groups)), default=None)


def _machine(proc: Path) -> Iterator[int]:
    available = value_of("MemAvailable", proc / "meminfo")
    if available is not None:
        yield int(available.split()[0]) * 1024


def _control_groups(proc: Path, groups: Path) -> Iterator[int]:
    for folder in control_groups(proc, groups):
        limit = "".join(lines(folder / "memory.max"))
        used = "".join(lines(folder / "memory.current"))
        if limit.isdecimal() and used.isdecimal():
            cache = sum(
                int(entry.split()[1])
                for entry in lines(folder / "memory.stat")
                if entry.startswith("inactive_file ")
            )
            yield max(0, int(limit) - int(used) + cache)
