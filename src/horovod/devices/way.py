"""Way by which tensors in device memory travel, and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.config import value_of
from horovod.devices import served
from horovod.devices.inventory import Inventory
from horovod.devices.served import NCCL, PEER, STAGED

__all__ = ["NONE", "Way", "choose"]

NONE = "none"

_STAGED = "staged through pinned host memory"


@dataclass(frozen=True)
class Way:
    """``name``: `NCCL`, `PEER`, `STAGED` or `NONE`; ``text``: with the reason, for people."""

    name: str
    text: str


def choose(inventory: Inventory, environ: Mapping[str, str]) -> Way:
    """The way for all collectives; single ones may be given another in the environment.

    Raises:
        ConfigError: ``HOROVOD_GPU_OPERATIONS`` makes no sense.
    """
    wanted: str = value_of("gpu_operations", environ)
    asked = f"HOROVOD_GPU_OPERATIONS={wanted}"
    if not inventory.devices:
        return Way(NONE, f"none: {inventory.problem}")
    if not served.SERVED:
        return Way(NONE, "none: this version takes tensors in host memory")
    if wanted in ("", NCCL):
        if inventory.nccl is not None and NCCL in served.SERVED:
            return Way(NCCL, str(inventory.nccl))
        missing = inventory.nccl_problem or f"{inventory.nccl} is there, but this version does not use it"
        if wanted == NCCL:
            return Way(NONE, f"none: {asked}, but {missing}")
        return Way(STAGED, f"{_STAGED}: {missing}")
    if wanted == PEER:
        if PEER in served.SERVED:
            return Way(PEER, f"copies between peers; reductions are {_STAGED}: {asked}")
        return Way(NONE, f"none: {asked}, but this version has no copies between peers")
    return Way(STAGED, f"{_STAGED}: {asked}")
