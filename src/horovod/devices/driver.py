"""Devices as NVIDIA's driver describes them.

Starting a driver changes the process: it makes threads, and a fork afterwards breaks. So this runs in a
process of its own: see `horovod.devices.inventory`.

Source: CUDA CudaDriver API Reference; numbers of attributes and statuses are those of ``cuda.h``.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Mapping
from typing import Any

from horovod.devices import mask

__all__ = ["LIBRARY", "CudaDriver", "DriverError", "devices"]

LIBRARY = "libcuda.so.1"

_NO_DEVICE = 100
_NOT_STARTED = 3
_MAJOR, _MINOR, _RDMA = 75, 76, 116  # attributes of a device
_NATIVE_ATOMICS = 3  # attribute of a pair: NVLink has them, PCI Express has not
_NAME_BYTES, _PCI_BYTES = 256, 32

# What to do about a driver that does not start.
_HELP = {
    34: "this is the stub that programs are linked with; take its folder out of LD_LIBRARY_PATH",
    802: "the devices of this machine need nvidia-fabricmanager, which does not run or is not ready",
    803: "the library and the kernel's module are of different versions; reboot, or match them",
    804: "the CUDA compatibility package does not serve this device; take it out of LD_LIBRARY_PATH",
}


class DriverError(Exception):
    """There is no driver or no device; the argument is a sentence without its full stop."""


class CudaDriver:
    """The driver's library, not started.

    Raises:
        DriverError: there is none.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            missing = "cannot open shared object file: No such file" in str(error)
            raise DriverError(
                f"no driver ({library}) was found" if missing else f"the driver cannot be loaded: {error}"
            ) from error

    def start(self, environ: Mapping[str, str] = os.environ) -> int:
        """The number of devices, at least one.

        Raises:
            DriverError: it does not start, or has no device for this process.
        """
        status = self._library.cuInit(0)
        count = ctypes.c_int(0)
        if status == 0:
            status = self._library.cuDeviceGetCount(ctypes.byref(count))
        if status == _NO_DEVICE or (status == 0 and count.value == 0):
            raise DriverError(f"the driver has no device for this process: {_why_none(environ)}")
        if status != 0:
            help = _HELP.get(status)
            raise DriverError(
                f"the driver cannot start: {self._described(status)}" + f"; {help}" * bool(help)
            )
        return count.value

    def started(self) -> bool:
        """Return whether anything in this process has started the driver."""
        count = ctypes.c_int(0)
        return int(self._library.cuDeviceGetCount(ctypes.byref(count))) != _NOT_STARTED

    def cuda(self) -> str:
        """The newest version of CUDA that it serves."""
        number = ctypes.c_int(0)
        self._library.cuDriverGetVersion(ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def device(self, index: int) -> dict[str, Any]:
        """The facts of one device by name.

        Raises:
            DriverError: a function fails.
        """
        device = self._handle(index)
        name, pci = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_PCI_BYTES)
        size = ctypes.c_size_t(0)
        self._check("cuDeviceGetName", name, _NAME_BYTES, device)
        self._check("cuDeviceGetPCIBusId", pci, _PCI_BYTES, device)
        self._check("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        return {
            "name": name.value.decode(errors="replace"),
            "memory_bytes": size.value,
            "uuid": self._uuid(device),
            "pci": pci.value.decode(errors="replace").lower(),
            "compute_capability": f"{self._attribute(_MAJOR, device)}.{self._attribute(_MINOR, device)}",
            "rdma": bool(self._attribute(_RDMA, device)),
        }

    def reaches(self, index: int, other: int) -> bool:
        """Return whether a device can use the memory of another one directly."""
        answer = ctypes.c_int(0)
        self._check("cuDeviceCanAccessPeer", ctypes.byref(answer), self._handle(index), self._handle(other))
        return bool(answer.value)

    def linked(self, index: int, other: int) -> bool:
        """Return whether NVLink connects two devices, as far as an old driver tells."""
        answer = ctypes.c_int(0)
        try:
            ask = self._library.cuDeviceGetP2PAttribute
        except AttributeError:
            return False
        status = ask(ctypes.byref(answer), _NATIVE_ATOMICS, self._handle(index), self._handle(other))
        return status == 0 and bool(answer.value)

    def _handle(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int(0)
        self._check("cuDeviceGet", ctypes.byref(device), index)
        return device

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        """0 where the driver does not know it."""
        value = ctypes.c_int(0)
        status = self._library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value if status == 0 else 0

    def _uuid(self, device: ctypes.c_int) -> str:
        """``GPU-...``; ``MIG-...`` for a part of a device, where the old function gives that of the whole."""
        texts = []
        for function in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
            data = (ctypes.c_ubyte * 16)()
            try:
                if getattr(self._library, function)(data, device) == 0:
                    texts.append(str(uuid.UUID(bytes=bytes(data))))
            except AttributeError:
                pass  # an old driver has the second one only
        kind = "MIG" if len(set(texts)) == 2 else "GPU"
        return f"{kind}-{texts[0]}" if texts else ""

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise DriverError(f"{function} of the driver failed: {self._described(status)}")

    def _described(self, status: int) -> str:
        """ "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"."""
        words = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            if getattr(self._library, function)(status, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        if not words:
            return f"status {status}"
        return f"{words[0]} ({words[1]})" if len(words) == 2 else words[0]


def devices(driver: CudaDriver, environ: Mapping[str, str] = os.environ) -> list[dict[str, Any]]:
    """The facts of all devices, with the numbers of those that each one reaches directly, and by NVLink.

    Raises:
        DriverError: see `CudaDriver.start` and `CudaDriver.device`.
    """
    everybody = range(driver.start(environ))
    return [
        {
            **driver.device(index),
            "peers": [other for other in everybody if other != index and driver.reaches(index, other)],
            "linked": [other for other in everybody if other != index and driver.linked(index, other)],
        }
        for index in everybody
    ]


def _why_none(environ: Mapping[str, str], folder: str = mask.DEVICE_FILES) -> str:
    there = mask.present(folder)
    if not there:
        return "this machine or container has no /dev/nvidia0 (docker needs --gpus all)"
    if mask.MASK in environ:
        return f"{mask.MASK}={environ[mask.MASK]} hides all of this machine's"
    return "none of this machine's can be used"
