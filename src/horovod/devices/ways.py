"""Ways of tensors in device memory: those that this version has, and the one that they take here, with
its reason.

Whoever builds another way adds its name to `SERVED`: `nccl_built`, `cuda_built` and the report of
``--check-build`` follow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.config import value_of

if TYPE_CHECKING:
    from horovod.devices.inventory import Inventory

__all__ = ["NCCL", "NONE", "PEER", "SERVED", "STAGED", "Way", "choose", "nccl_code"]

NCCL = "NCCL"
STAGED = "STAGED"
"""By copies through pinned host memory."""

PEER = "PEER"
"""By copies between the devices of a host."""

SERVED: frozenset[str] = frozenset({STAGED, NCCL, PEER})


def nccl_code(environ: Mapping[str, str] = os.environ) -> int:
    """The version code of the NCCL that serves here, 22703 for 2.27.3; 0 if none does."""
    if NCCL not in SERVED:
        return 0
    from horovod.devices.inventory import ask_nccl  # only who can use it pays for it

    found, _ = ask_nccl(environ)
    return 0 if found is None else found.version


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
    if not SERVED:
        return Way(NONE, "none: this version takes tensors in host memory")
    if wanted in ("", NCCL):
        if inventory.nccl is not None and NCCL in SERVED:
            return Way(NCCL, str(inventory.nccl))
        missing = inventory.nccl_problem or f"{inventory.nccl} is there, but this version does not use it"
        if wanted == NCCL:
            return Way(NONE, f"none: {asked}, but {missing}")
        return Way(STAGED, f"{_STAGED}: {missing}")
    if wanted == PEER:
        if PEER in SERVED:
            return Way(PEER, f"copies between peers; reductions are {_STAGED}: {asked}")
        return Way(NONE, f"none: {asked}, but this version has no copies between peers")
    return Way(STAGED, f"{_STAGED}: {asked}")
