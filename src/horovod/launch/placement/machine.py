"""Number of processes that fit this machine, if nobody has said it: one for each GPU, else for each core."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from horovod.bootstrap.place.cores import usable_cores
from horovod.devices.mask import present, visible

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
    """
    return len(visible(environ, devices)) if present(devices) else 0
