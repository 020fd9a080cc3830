"""The report on devices, for people and for programs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from horovod.devices import ways
from horovod.devices.inventory import Device, Inventory
from horovod.devices.locality import as_text
from horovod.devices.ways import PEER, choose
from horovod.errors import ConfigError

__all__ = ["facts", "section"]


def section(inventory: Inventory, environ: Mapping[str, str] = os.environ) -> str:
    """ "Devices:" and indented lines."""
    devices = inventory.devices
    rows = [("", _of_device(device)) for device in devices] or [("no GPU was found", inventory.problem)]
    if devices:
        rows.append(("driver", _driver(inventory)))
    nccl = inventory.nccl_problem if inventory.nccl is None else str(inventory.nccl).partition(" ")[2]
    rows.append(("NCCL", nccl))
    if len(devices) > 1:
        rows.append(("peer access", _pairs(devices, "peers", "each other's memory")))
        rows.append(("NVLink", _pairs(devices, "linked", "each other by it") + _links(devices)))
    if devices:
        rows.append(("copies between peers", _peer(devices)))
        rows.append(("GPUDirect RDMA", _rdma(inventory)))
    rows.append(("tensors in device memory", _way(inventory, environ)))
    return (
        "\n".join(["Devices:", *(f"    {name}: {text}" if name else f"    {text}" for name, text in rows)])
        + "\n"
    )


def facts(inventory: Inventory, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """All that is known, as JSON takes it."""
    known = dataclasses.asdict(inventory)
    devices = known.pop("devices")
    return {"devices": devices, "device_support": {**known, "way": _way(inventory, environ)}}


def _of_device(device: Device) -> str:
    words = [
        f"{device.index}  {device.name}",
        f"{device.memory_bytes / (1 << 30):.1f} GiB",
        f"compute capability {device.compute_capability}",
        f"PCI {device.pci}",
    ]
    if device.numa_node is not None:
        words.append(f"NUMA node {device.numa_node}")
    if device.cores:
        words.append(f"cores {as_text(device.cores)}")
    return ", ".join([*words, device.uuid])


def _driver(inventory: Inventory) -> str:
    serves = f"serves CUDA {inventory.cuda}"
    return f"{inventory.driver}, {serves}" if inventory.driver else serves


def _pairs(devices: tuple[Device, ...], field: str, what: str) -> str:
    good, every = _mutual(devices, field)
    if every:
        return f"all devices reach {what}"
    if not good:
        return "no device reaches another's memory" if field == "peers" else "no two devices have it"
    return f"these reach {what}: {', '.join(f'{one}-{other}' for one, other in good)}"


def _mutual(devices: tuple[Device, ...], field: str) -> tuple[list[tuple[int, int]], bool]:
    """Pairs of devices that have each other in ``field``; whether all pairs do."""
    reached = {(one.index, other) for one in devices for other in getattr(one, field)}
    pairs = [(one.index, other.index) for one in devices for other in devices if one.index < other.index]
    good = [(one, other) for one, other in pairs if {(one, other), (other, one)} <= reached]
    return good, len(good) == len(pairs)


def _peer(devices: tuple[Device, ...]) -> str:
    """Name the ranks of this host that could use ``PEER``."""
    if PEER not in ways.SERVED:
        return "this version has none"
    good, every = _mutual(devices, "peers")
    whose = "that share a device"
    if len(devices) > 1 and every:
        whose = "on any devices"
    elif good:
        whose += f", or are on devices {', '.join(f'{one}-{other}' for one, other in good)}"
    unasked = "never chosen unasked, as nobody has measured it between devices"
    return f"HOROVOD_GPU_OPERATIONS=PEER can serve ranks {whose}; {unasked}"


def _links(devices: tuple[Device, ...]) -> str:
    counts = [device.links for device in devices]
    if any(count is None for count in counts):
        return ""
    return f"; links that are up, by device: {', '.join(map(str, counts))}"


def _rdma(inventory: Inventory) -> str:
    able = [device.index for device in inventory.devices if device.rdma]
    if not able:
        return "no device supports it"
    words = [f"devices {as_text(able)} support it"]
    words.append(
        f"the kernel has {inventory.peer_module}"
        if inventory.peer_module
        else "the kernel has no nvidia_peermem, so that only DMA-BUF is left"
    )
    names = [
        f"{name} on NUMA node {node}" if node is not None else name
        for name, node in inventory.adapters.items()
    ]
    words.append(f"InfiniBand adapters: {', '.join(names)}" if names else "there is no InfiniBand adapter")
    return "; ".join(words)


def _way(inventory: Inventory, environ: Mapping[str, str]) -> str:
    try:
        return choose(inventory, environ).text
    except ConfigError as error:
        return f"none: {error}".rstrip(".")
