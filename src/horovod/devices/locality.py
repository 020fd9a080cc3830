"""Locality of a device: its NUMA node, the cores and the network adapters near it.

Source: kernel documentation, sysfs-bus-pci (``numa_node``, ``local_cpulist``), sysfs-class-infiniband.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from horovod.bootstrap.place.proc import lines
from horovod.devices.core_list import read_list

__all__ = ["SYS", "Locality", "adapters", "locality_of", "whole_cores"]

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
