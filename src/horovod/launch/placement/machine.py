"""How many processes fit this machine, where nobody has said it: one for each GPU, else for each core."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from horovod.bootstrap.cores import usable_cores

__all__ = ["Room", "room_here", "usable_gpus"]

_DEVICES = Path("/dev")


class Room(NamedTuple):
    """``why``: what they are counted by, for the user."""

    processes: int
    why: str


def room_here(environ: Mapping[str, str]) -> Room:
    """One process for each GPU that programs may use here; without any, for each core."""
    gpus = usable_gpus(environ)
    if gpus:
        return Room(gpus, "one for each GPU")
    cores, limited = usable_cores()
    return Room(cores, f"one for each core that {'its control group allows' if limited else 'may be used'}")


def usable_gpus(environ: Mapping[str, str], devices: Path = _DEVICES) -> int:
    """NVIDIA's GPUs that are visible: those of the machine or container, as far as ``CUDA_VISIBLE_DEVICES``
    names them.

    Source: CUDA C++ Programming Guide, ``CUDA_VISIBLE_DEVICES``: what follows the first invalid entry does
    not count.
    """
    try:
        there = sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in devices.iterdir())
    except OSError:
        there = 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not there:
        return there
    named = 0
    for entry in visible.split(","):
        word = entry.strip()
        if not word or word.startswith("-") or (word.isdecimal() and int(word) >= there):
            break
        named += 1
    return named
