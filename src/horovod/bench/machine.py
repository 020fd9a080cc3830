"""The machine and the versions that figures depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata

from horovod.bootstrap.place.control_groups import PROC
from horovod.bootstrap.place.proc import value_of

__all__ = ["machine", "versions"]


def machine() -> dict[str, str]:
    """Processors, memory and system, in words."""
    cpu = value_of("model name", PROC / "cpuinfo") or platform.machine()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{os.cpu_count()} x {cpu}",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions(distributions: Iterable[str] = ("farandole", "torch")) -> dict[str, str]:
    """Of Python and of those ``distributions`` that are installed."""
    found = {"python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass  # a source tree, or a library that this run does not need
    return found
