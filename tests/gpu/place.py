"""The device of a rank, real or the stand-in: streams, waits, and the driver's functions.

Importing this chooses the device that ``FARANDOLE_TEST_DEVICE`` names, so it comes before `horovod.torch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from typing import Any

from tests.contract.world import use_device

use_device()

import torch  # noqa: E402 - the stand-in comes before it

__all__ = [
    "ON_FAKE",
    "Pinned",
    "Stream",
    "copy",
    "driver",
    "here",
    "memory_in_use",
    "nothing_between",
    "check",
    "new_stream",
    "raw",
    "synchronize",
    "use",
]

ON_FAKE = os.environ.get("FARANDOLE_TEST_DEVICE") == "fake"

if ON_FAKE:
    from tests.fakes.torch import GUARD as _guard
    from tests.fakes.torch import device as _fake

    Stream: Any = _fake.Stream
    use: Any = _fake.stream
else:
    Stream, use = torch.cuda.Stream, torch.cuda.stream

driver = ctypes.CDLL("libcuda.so.1")


@functools.cache
def here() -> int:
    """The number of this rank's device."""
    index = torch.get_default_device().index
    assert index is not None
    return index


@contextlib.contextmanager
def nothing_between() -> Iterator[None]:
    """New tensors are on the CPU meanwhile. While PyTorch makes them on another device by default, every call
    of it takes a way around through Python: 6 us in an allreduce, which users do not have."""
    if ON_FAKE:
        yield
        return
    device = torch.device("cuda", here())
    torch.set_default_device(None)
    try:
        yield
    finally:
        torch.set_default_device(device)


def new_stream() -> Any:
    return Stream(here())


def raw(stream: Any) -> ctypes.c_void_p:
    """A stream as C functions take it."""
    return ctypes.c_void_p(stream.handle if ON_FAKE else stream.cuda_stream)


def synchronize() -> None:
    """Wait for everything on the device."""
    torch.cuda.synchronize(here())


def _enter() -> None:
    """PyTorch's context becomes that of this thread."""
    torch.empty(1)
    if ON_FAKE:
        _guard.standInEnter(here())


def check(function: str, *arguments: Any) -> None:
    """Call a function of the driver."""
    _enter()
    status = getattr(driver, function)(*arguments)
    assert status == 0, f"{function} answers {status}"


def memory_in_use() -> int:
    """Bytes of the device that all programs have."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


class Pinned:
    """Host memory that a device copies from and to by itself."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = ctypes.c_void_p()
        check("cuMemHostAlloc", ctypes.byref(self._memory), ctypes.c_size_t(size_bytes), 0)
        assert self._memory.value
        self.address: int = self._memory.value

    def free(self) -> None:
        check("cuMemFreeHost", self._memory)


def copy(to: int, source: int, size_bytes: int, stream: Any) -> None:
    """Put a copy into ``stream``."""
    check(
        "cuMemcpyAsync",
        ctypes.c_uint64(to),
        ctypes.c_uint64(source),
        ctypes.c_size_t(size_bytes),
        raw(stream),
    )
