"""How much memory may still be taken, before the kernel starts to end processes.

Reserving too much does not fail: the kernel first ends processes, ours or others', to make room. So it is
asked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_bytes"]


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The least that the machine and each control group (version 2) of this process have left; None if
    unknown.

    Source: proc(5), ``MemAvailable``; kernel documentation, cgroup-v2, ``memory.max`` and ``memory.stat``.
    """
    return min((*_machine(proc), *_control_groups(proc, groups)), default=None)


def _machine(proc: Path) -> Iterator[int]:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _control_groups(proc: Path, groups: Path) -> Iterator[int]:
    for line in _lines(proc / "self" / "cgroup"):
        if not line.startswith("0::/"):
            continue
        folder = groups / line[len("0::/") :]
        while folder == groups or groups in folder.parents:
            limit = "".join(_lines(folder / "memory.max"))
            used = "".join(_lines(folder / "memory.current"))
            if limit.isdecimal() and used.isdecimal():
                cache = sum(
                    int(entry.split()[1])
                    for entry in _lines(folder / "memory.stat")
                    if entry.startswith("inactive_file ")
                )
                yield max(0, int(limit) - int(used) + cache)
            folder = folder.parent


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
