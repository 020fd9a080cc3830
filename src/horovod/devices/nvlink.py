"""Number of NVLink links of each device, as NVIDIA's management library counts them.

Source: NVML API Reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

__all__ = ["LIBRARY", "active_links"]

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
