"""``python -m horovod.devices.probe driver`` or ``nccl``: what loading a library of others tells, as JSON.

A program of its own: a library that crashes or hangs there hurts nobody.

Source: NVML API Reference, for the NVLink links of a device.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["LIBRARY", "active_links", "main"]

LIBRARY = "libnvidia-ml.so.1"

_MOST_LINKS = 18
_ON = 1


def active_links(pci: Sequence[str], library: str = LIBRARY) -> list[int | None]:
    """For each device, by its address on the PCI bus, its active links; None: not known."""
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2() != 0:
            return [None] * len(pci)
        try:
            return [_links(nvml, address) for address in pci]
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):  # there is none, or it is older than NVLink
        return [None] * len(pci)


def _links(nvml: ctypes.CDLL, address: str) -> int | None:
    device = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(device)) != 0:
        return None
    active = 0
    for link in range(_MOST_LINKS):
        state = ctypes.c_int(0)
        if nvml.nvmlDeviceGetNvLinkState(device, link, ctypes.byref(state)) == 0:
            active += state.value == _ON
    return active


def _driver() -> dict[str, Any]:
    from horovod.devices.driver import CudaDriver, DriverError, devices

    cuda = ""
    try:
        driver = CudaDriver()
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
