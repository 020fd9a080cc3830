"""Pinning of a rank: it takes a device of its host, and cores near it."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.devices import mask
from horovod.devices.driver import LIBRARY, CudaDriver
from horovod.devices.inventory import Device, Inventory, take_inventory
from horovod.devices.locality import as_text, bind_threads, core_share

__all__ = ["Pinned", "HostPlace", "pin"]

_log = logging.getLogger("horovod")

_LIMIT_S = 30.0


@dataclass(frozen=True)
class Pinned:
    """Device and cores that a rank has taken.

    Attributes:
        device: its number for programs of this process; None: there is no device, or another one must be
            chosen by the script, as ``why`` says.
        name, uuid: of the device; empty if there is none.
        numa_node: near the device; None: not known.
        cores: those that this process is bound to, as Linux numbers CPUs; empty: it was not bound.
        adapters: InfiniBand adapters on that node. NCCL finds them by itself.
        why: how all this came about, for people.
    """

    device: int | None
    name: str
    uuid: str
    numa_node: int | None
    cores: tuple[int, ...]
    adapters: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class HostPlace:
    """Place of a rank on its host. ``cores_per_rank``: of the cores that ranks of the host may use."""

    local_rank: int
    local_size: int
    cores_per_rank: float


@dataclass(frozen=True)
class _Before:
    """State of the process before it was first pinned: a later call begins with it."""

    mask: str | None
    cores: frozenset[int]


_before: _Before | None = None


def pin(place: HostPlace, cores: bool | None = None) -> Pinned:
    """Take the device of this place, and the cores near it.

    Args:
        cores: bind this process to cores: always, never, or (None) if the machine says which are near the
            device.
    """
    before = _restored()
    inventory = take_inventory(nccl=False, limit_s=_LIMIT_S)
    device, why = None, f"no device: {inventory.problem}"
    index = None
    if inventory.devices:
        entry = _part_of_a_device(inventory, place)
        if entry:
            os.environ[mask.MASK] = entry
            inventory = take_inventory(nccl=False, limit_s=_LIMIT_S)
        if inventory.devices:
            device = inventory.devices[place.local_rank % len(inventory.devices)]
            index, why = _take(device, inventory)
            why = f"local rank {place.local_rank} of {place.local_size}: {why}"
        else:
            why = f"no device: {mask.MASK}={entry}: {inventory.problem}"
    bound, how = _bind(place, inventory, device, before, cores)
    pinned = Pinned(
        device=index,
        name="" if device is None else device.name,
        uuid="" if device is None else device.uuid,
        numa_node=None if device is None else device.numa_node,
        cores=bound,
        adapters=_adapters(inventory, device),
        why=f"{why}; {how}",
    )
    _log.info("%s", pinned.why)
    return pinned


def _restored() -> _Before:
    """Undo an earlier call: this rank may have another place in a new world."""
    global _before
    if _before is None:
        _before = _Before(os.environ.get(mask.MASK), frozenset(os.sched_getaffinity(0)))
        return _before
    if _before.mask is None:
        os.environ.pop(mask.MASK, None)
    else:
        os.environ[mask.MASK] = _before.mask
    bind_threads(_before.cores, os.sched_getaffinity(0))
    return _before


def _part_of_a_device(inventory: Inventory, place: HostPlace) -> str:
    """Of a mask with several parts of devices (``MIG-...``) a process sees the first one only: so the mask
    has to name this rank's own. Empty if there is nothing to choose.
    """
    entries = mask.visible(os.environ)
    parts = len(entries) > len(inventory.devices) and all(entry.startswith("MIG-") for entry in entries)
    return mask.of_rank(entries, place.local_rank) if parts and not _started() else ""


def _take(device: Device, inventory: Inventory) -> tuple[int | None, str]:
    """Make the frameworks of this process use it; its number for them, and how."""
    which = f"device {device.index} of {len(inventory.devices)}"
    ways = [way for way in (_take_with_torch(device.index), _take_with_tensorflow(device.index)) if way]
    if ways:
        return device.index, f"{which}, by {' and '.join(ways)}"
    if _started():
        return None, (
            f"{which} is yours, but CUDA was started before pin() was called, by a library that pin() "
            "does not know: choose that device in the script, or call pin() earlier"
        )
    entries = mask.visible(os.environ)
    entry = entries[device.index] if device.index < len(entries) else str(device.index)
    os.environ[mask.MASK] = entry
    return 0, f"{which}, by {mask.MASK}={entry}"


# Frameworks that the script has not imported are not imported here either.


def _take_with_torch(index: int) -> str:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return ""
    torch.cuda.set_device(index)
    return f"torch.cuda.set_device({index})"


def _take_with_tensorflow(index: int) -> str:
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None:
        return ""
    devices = tensorflow.config.list_physical_devices("GPU")
    if index >= len(devices):
        return ""
    try:
        tensorflow.config.set_visible_devices(devices[index], "GPU")
    except RuntimeError:  # it uses its devices already
        return ""
    return f"tf.config.set_visible_devices(gpus[{index}])"


def _started() -> bool:
    """Return whether a library of this process uses CUDA already: then the mask has been read."""
    try:
        ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return CudaDriver().started()


def _bind(
    place: HostPlace, inventory: Inventory, device: Device | None, before: _Before, cores: bool | None
) -> tuple[tuple[int, ...], str]:
    """The cores that this process is bound to, if it is, and the reason."""
    if cores is False:
        return (), "cores are left as they are: pin(cores=False)"
    if cores is None and (device is None or not device.cores):
        return (), "cores are left as they are: none is known to be near a device"
    if len(before.cores) <= place.cores_per_rank:
        return (), f"cores {as_text(before.cores)} are this rank's alone already"
    bound = core_share(place.local_rank, _near(place, inventory.devices), sorted(before.cores))
    if problem := bind_threads(bound, before.cores):
        return (), f"cores are left as they are: {problem}"
    return bound, f"bound to cores {as_text(bound)}"


def _near(place: HostPlace, devices: Sequence[Device]) -> list[tuple[int, ...]]:
    """By local rank, as `core_share` wants it. Whoever sees one device only does not know where the others
    of its host have theirs.
    """
    if not devices:
        return [()] * place.local_size
    if len(devices) == 1:
        return [devices[0].cores]
    return [devices[rank % len(devices)].cores for rank in range(place.local_size)]


def _adapters(inventory: Inventory, device: Device | None) -> tuple[str, ...]:
    if device is None or device.numa_node is None:
        return ()
    return tuple(name for name, node in inventory.adapters.items() if node == device.numa_node)
