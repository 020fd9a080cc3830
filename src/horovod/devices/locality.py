"""Locality of a device: its NUMA node, the cores and the network adapters near it, and the share of a rank in
these cores, to which its threads are bound.

Source: kernel documentation, sysfs-bus-pci (``numa_node``, ``local_cpulist``), sysfs-class-infiniband,
cputopology (lists such as ``0-31,64-95``); sched_setaffinity(2), proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.bootstrap.place.proc import lines

__all__ = [
    "Locality",
    "SYS",
    "adapters",
    "as_text",
    "bind_threads",
    "core_share",
    "locality_of",
    "read_list",
    "whole_cores",
]


def read_list(text: str) -> tuple[int, ...]:
    """The numbers in a list, ascending; none if it is no list."""
    found: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def as_text(numbers: Iterable[int]) -> str:
    """The list with these numbers."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


SYS = Path("/sys")


class Locality(NamedTuple):
    """``numa_node`` is None, and ``cores`` may be empty, where the machine does not say it."""

    numa_node: int | None
    cores: tuple[int, ...]


def locality_of(pci: str, sys: Path = SYS) -> Locality:
    """Of the device at this address of the PCI bus: ``0000:1b:00.0``, in any letter case."""
    folder = sys / "bus" / "pci" / "devices" / pci.lower()
    return Locality(_node(folder), read_list("".join(lines(folder / "local_cpulist")[:1])))


def adapters(sys: Path = SYS) -> dict[str, int | None]:
    """The InfiniBand adapters of this machine by name, with their NUMA nodes."""
    folder = sys / "class" / "infiniband"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return {}
    return {name: _node(folder / name / "device") for name in names}


def whole_cores(threads: tuple[int, ...], sys: Path = SYS) -> list[tuple[int, ...]]:
    """Group what Linux calls CPUs: those that are threads of one core."""
    left = dict.fromkeys(threads)
    groups = []
    while left:
        first = next(iter(left))
        file = sys / "devices" / "system" / "cpu" / f"cpu{first}" / "topology" / "thread_siblings_list"
        siblings = {first, *read_list("".join(lines(file)[:1]))}
        group = tuple(thread for thread in left if thread in siblings)
        for thread in group:
            del left[thread]
        groups.append(group)
    return groups


def _node(folder: Path) -> int | None:
    text = "".join(lines(folder / "numa_node")[:1]).strip()
    return int(text) if text.isdecimal() else None  # -1: none


def core_share(
    local_rank: int, near: Sequence[Sequence[int]], allowed: Sequence[int], sys: Path = SYS
) -> tuple[int, ...]:
    """The rank's part of the cores near its device; threads of a core stay together.

    Args:
        near: for each local rank, the cores near its device; empty: not known. If only this rank's are known,
            there is this one entry, and nothing is divided.
        allowed: those that the ranks may use at all. They count where none near the device is allowed.

    Returns:
        At least one core. Ranks that are too many for their cores all have the same ones.
    """
    usable = [tuple(sorted(set(cores) & set(allowed))) or tuple(sorted(allowed)) for cores in near]
    if len(usable) == 1:
        return usable[0]
    own = usable[local_rank]
    mates = [rank for rank, cores in enumerate(usable) if cores == own]
    cores, place = whole_cores(own, sys), mates.index(local_rank)
    first, last = (len(cores) * part // len(mates) for part in (place, place + 1))
    return tuple(sorted(thread for core in cores[first:last] for thread in core)) or own


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
