"""Devices that programs may use here, as far as can be seen without a driver: device files, and the mask that
a scheduler has set.

Also part of the agent's text (`horovod.launch.agent.bundle`): only the standard library, and Python 3.7.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["DEVICE_FILES", "MASK", "of_rank", "present", "visible"]

MASK = "CUDA_VISIBLE_DEVICES"
DEVICE_FILES = "/dev"


def present(folder: str | os.PathLike[str] = DEVICE_FILES) -> int:
    """NVIDIA's devices of the machine or container, by their files."""
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    return sum(name.startswith("nvidia") and name[len("nvidia") :].isdecimal() for name in names)


def visible(environ: Mapping[str, str], folder: str | os.PathLike[str] = DEVICE_FILES) -> list[str]:
    """Name the devices that programs may use, in the order of their numbers: entries of the mask, which may
    be numbers, ``GPU-...`` or ``MIG-...``; without a mask the numbers of all.

    Source: CUDA C++ Programming Guide, ``CUDA_VISIBLE_DEVICES``: what follows the first invalid entry does
    not count. A driver that reads an entry twice has no device at all.
    """
    there = present(folder)
    mask = environ.get(MASK)
    if mask is None:
        return [str(number) for number in range(there)]
    entries = []
    for entry in mask.split(","):
        word = entry.strip()
        if not word or word.startswith("-") or (there and word.isdecimal() and int(word) >= there):
            break
        if word in entries:
            return []
        entries.append(word)
    return entries


def of_rank(entries: Sequence[str], local_rank: int) -> str:
    """The device of a rank: ranks beyond the last device begin with the first one again."""
    return entries[local_rank % len(entries)]
