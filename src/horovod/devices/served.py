"""The ways that this version has for tensors in device memory.

Whoever builds one adds its name to `SERVED`: `nccl_built`, `cuda_built` and the report of ``--check-build``
follow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["NCCL", "PEER", "SERVED", "STAGED", "nccl_code"]

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
