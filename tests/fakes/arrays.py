"""A library of arrays on the fake device: what CuPy and its like are to a real one.

Arrays have a stream, in whose order all is done with them. Streams are non-blocking: nothing waits for the
default stream. Memory is given back when its stream has come to the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = [
    "Array",
    "Counters",
    "DlpackArray",
    "PlainArray",
    "Stream",
    "array",
    "counters",
    "current_stream",
    "driver",
    "empty",
    "holding",
    "on_default",
    "using",
]

_NON_BLOCKING = 1


class Counters(ctypes.Structure):
    """``FakeCudaCounters`` of fake_cuda.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("allocations", "allocated_bytes", "opened", "pinned", "pinned_bytes", "streams", "events"),
            *("host_to_device", "host_to_device_bytes", "device_to_host", "device_to_host_bytes"),
            *("device_to_device", "device_to_device_bytes", "host_to_host", "host_to_host_bytes"),
            *("pageable", "captured"),
        )
    )


class _Driver:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.library, function)(*arguments)
        assert status == 0, f"{function} answers {status}"

    def use(self, device: int) -> None:
        """Makes the primary context of ``device`` current in this thread."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        self.call("cuCtxSetCurrent", self._contexts[device])


_found: list[_Driver] = []


def driver() -> _Driver:
    """The fake driver; must be in the way of the loader."""
    if not _found:
        _found.append(_Driver())
    return _found[0]


def counters() -> Counters:
    """What lives, and what was asked for since the library was loaded."""
    counted = Counters()
    driver().library.fakeCudaCount(ctypes.byref(counted))
    return counted


class Stream:
    def __init__(self, device: int = 0, handle: int | None = None) -> None:
        self.device = device
        if handle is None:
            made = ctypes.c_void_p()
            driver().use(device)
            driver().call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
            handle = made.value
        self.handle = handle

    @property
    def raw(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.handle)

    def synchronize(self) -> None:
        driver().use(self.device)
        driver().call("cuStreamSynchronize", self.raw)

    def query(self) -> bool:
        """Whether all is done."""
        driver().use(self.device)
        status: int = driver().library.cuStreamQuery(self.raw)
        assert status in (0, 600), status
        return status == 0

    def wait_for(self, other: Stream) -> None:
        """What comes from now on comes after what is in ``other``."""
        event = ctypes.c_void_p()
        driver().use(other.device)
        driver().call("cuEventCreate", ctypes.byref(event), 2)
        driver().call("cuEventRecord", event, other.raw)
        driver().use(self.device)
        driver().call("cuStreamWaitEvent", self.raw, event, 0)
        driver().call("cuEventDestroy_v2", event)


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()


def current_stream(device: int = 0) -> Stream:
    """That of the calling thread, in which new arrays are used."""
    if device not in _current.streams:
        _current.streams[device] = Stream(device)
    return _current.streams[device]


@contextlib.contextmanager
def using(stream: Stream) -> Iterator[Stream]:
    before = _current.streams.get(stream.device)
    _current.streams[stream.device] = stream
    try:
        yield stream
    finally:
        if before is None:
            del _current.streams[stream.device]
        else:
            _current.streams[stream.device] = before


@contextlib.contextmanager
def holding(stream: Stream) -> Iterator[None]:
    """No further command of ``stream`` starts."""
    driver().library.fakeCudaHold(stream.raw)
    try:
        yield
    finally:
        driver().library.fakeCudaRelease(stream.raw)


class _Memory:
    """Device memory with an owner."""

    def __init__(self, size_bytes: int, stream: Stream) -> None:
        self.stream = stream
        address = ctypes.c_uint64(0)
        driver().use(stream.device)
        driver().call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size_bytes, 1)))
        self.address = address.value

    def __del__(self) -> None:
        self.stream.synchronize()
        driver().call("cuMemFree_v2", ctypes.c_uint64(self.address))


class Array:
    """Exports ``__cuda_array_interface__`` 3; ``named`` overrides the stream that it tells there."""

    def __init__(self, shape: Sequence[int], dtype: Any, stream: Stream) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.stream = stream
        self.named: Any = stream.handle or 1
        self.extra: dict[str, Any] = {}
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self._memory = _Memory(self.size * self.dtype.itemsize, stream)

    @property
    def address(self) -> int:
        return self._memory.address

    @property
    def device(self) -> int:
        return self.stream.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str if self.dtype.kind != "V" else f"<V{self.dtype.itemsize}",
            "data": (self.address if self.size else 0, False),
            "version": 3,
            "strides": None,
            "stream": self.named,
            **self.extra,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return Namespace

    def numpy(self) -> Any:
        """Its values, in the order of its stream."""
        values = np.empty(self.shape, self.dtype)
        if values.nbytes:
            self._copy(ctypes.c_uint64(values.ctypes.data), ctypes.c_uint64(self.address))
        self.stream.synchronize()
        return values

    def add(self, value: float) -> Array:
        """A kernel that adds ``value`` to each element, which are float32."""
        assert self.dtype == np.float32
        driver().use(self.device)
        driver().call(
            "fakeCudaAdd",
            self.stream.raw,
            ctypes.c_uint64(self.address),
            ctypes.c_size_t(self.size),
            ctypes.c_float(value),
        )
        return self

    def _copy(self, to: ctypes.c_uint64, source: ctypes.c_uint64) -> None:
        driver().use(self.device)
        size = ctypes.c_size_t(self.size * self.dtype.itemsize)
        driver().call("cuMemcpyAsync", to, source, size, self.stream.raw)


class PlainArray(Array):
    """Says nothing but its ``__cuda_array_interface__``, as Numba's do, so the driver knows its device."""

    __dlpack_device__ = property()


class DlpackArray(Array):
    """Known by DLPack only. Who takes it names a stream, which waits for that of the array."""

    __cuda_array_interface__ = property()

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        from horovod.arrays.dlpack import _Tensor

        assert stream  # 0 has no meaning
        if stream != -1:
            Stream(self.device, stream).wait_for(self.stream)
        extents = (ctypes.c_int64 * len(self.shape))(*self.shape)
        codes = {"i": 0, "u": 1, "f": 2, "b": 6}
        self._tensor = _Tensor(
            self.address,
            2,
            self.device,
            len(self.shape),
            codes[self.dtype.kind],
            8 * self.dtype.itemsize,
            1,
            extents,
            None,
            0,
        )
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self._name = b"dltensor"  # a capsule does not copy its name
        capsule: object = make(ctypes.addressof(self._tensor), self._name, None)
        return capsule


def empty(shape: Sequence[int], *, dtype: Any = np.float64, device: int | None = None) -> Array:
    """Any content: the fake's pattern."""
    return Array(shape, dtype, current_stream(device or 0))


def array(values: Any, device: int = 0, kind: type[Array] = Array) -> Array:
    """``values`` on the device, in the order of the current stream."""
    values = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
    made = kind(values.shape, values.dtype, current_stream(device))
    if values.nbytes:
        made._copy(ctypes.c_uint64(made.address), ctypes.c_uint64(values.ctypes.data))
    return made


def on_default(values: Any, device: int = 0, named: int | None = None) -> Array:
    """An array of the default stream, which says so (1) or asks for no order (``None``)."""
    with using(Stream(device, 0)):
        made = array(values, device)
    made.named = named
    return made


class Namespace:
    """What ``__array_namespace__`` gives."""

    empty = staticmethod(empty)
