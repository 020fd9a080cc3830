"""How much of one kind of work on a device lies beside another kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Interval", "hidden_share", "merged", "of_profile"]

Interval = tuple[float, float]
"""Begin and end, in one unit of time."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as intervals that do not touch, in order."""
    united: list[Interval] = []
    for begin, end in sorted(intervals):
        if united and begin <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        elif end > begin:
            united.append((begin, end))
    return united


def hidden_share(communication: Iterable[Interval], compute: Iterable[Interval]) -> float:
    """The share of the time of communication in which the device computes, too: 0 … 1.

    Raises:
        ValueError: there is no communication.
    """
    moving, computing = merged(communication), merged(compute)
    total = sum(end - begin for begin, end in moving)
    if not total:
        raise ValueError("No communication was seen.")
    shared = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in moving
        for other_begin, other_end in computing
    )
    return shared / total


def of_profile(events: Iterable[Any]) -> tuple[list[Interval], list[Interval]]:
    """What a profile of PyTorch has of communication, and of kernels of the model; in microseconds.

    Source: ``torch.profiler.profile.events()``; names of copies are those of CUPTI.
    """
    moving: list[Interval] = []
    computing: list[Interval] = []
    for event in events:
        if not str(event.device_type).endswith("CUDA"):
            continue
        interval = float(event.time_range.start), float(event.time_range.end)
        name = event.name.lower()
        if "nccl" in name or "memcpy htod" in name or "memcpy dtoh" in name:
            moving.append(interval)
        elif not name.startswith(("memcpy", "memset")):
            computing.append(interval)
    return moving, computing
