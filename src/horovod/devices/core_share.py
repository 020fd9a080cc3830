"""Share of a rank in the cores that several ranks of its host may use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from horovod.devices.locality import SYS, whole_cores

__all__ = ["core_share"]


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
