"""``python -m horovod.devices.probe driver`` or ``nccl``: what loading a library of others tells, as JSON.

A program of its own: a library that crashes or hangs there hurts nobody.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["main"]


def _driver() -> dict[str, Any]:
    from horovod.devices.driver import Driver, DriverError, devices
    from horovod.devices.nvlink import active_links

    cuda = ""
    try:
        driver = Driver()
        cuda = driver.cuda()
        found = devices(driver)
    except DriverError as error:
        return {"problem": str(error), "cuda": cuda}
    links = active_links([each["pci"] for each in found])
    return {
        "cuda": cuda,
        "devices": [{**each, "links": count} for each, count in zip(found, links, strict=True)],
    }


def _nccl() -> dict[str, Any]:
    from horovod.devices.nccl import NcclError, find_nccl

    try:
        found = find_nccl()
    except NcclError as error:
        return {"problem": str(error)}
    return {"version": found.version, "file": found.file}


_PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {"driver": _driver, "nccl": _nccl}


def main() -> None:
    """Print what the probe that is named finds."""
    found = _PROBES[sys.argv[1]]()
    print(json.dumps(found))  # one line, the last one: libraries print, too


if __name__ == "__main__":
    main()
