"""Arrays that say where they lie by ``__cuda_array_interface__``: CuPy's, Numba's and others.

Source: CUDA Array Interface (Version 3), Numba's documentation. Where it is silent or leaves a choice:

* ``stream`` ``None`` asks for no order. Numba says it of arrays of the default stream, whose kernels may
  still run: such an array is used in the order of the legacy default stream. Whoever waits for the operation
  waits on the host: nobody knows in which stream the result will be used.
* The stream 2 is another one in each thread. The engine's threads cannot name that of the caller.
* It does not tell the number of the device: DLPack does, else the driver is asked whose memory it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from horovod import _core
from horovod.arrays.view import DEFAULT_STREAM, View, check_layout, code_of, named
from horovod.collectives.numpy_frontend import byte_swapped
from horovod.errors import InvalidArgumentError

__all__ = ["read"]

_LEGACY_STREAM: Final = 1
_STREAM_OF_THE_THREAD: Final = 2
_ORDINAL: Final = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


def read(array: Any, interface: Mapping[str, Any]) -> View:
    """View the memory of ``array``, whose attribute is ``interface``.

    Raises:
        InvalidArgumentError: dtype not supported, not contiguous, masked, or a stream that cannot be used.
    """
    if interface.get("mask") is not None:
        raise InvalidArgumentError(
            f"{named(array)} has a mask, and a collective works on all elements. Pass what is not masked."
        )
    typestr = interface["typestr"]
    try:
        dtype = np.dtype(typestr)
    except TypeError:  # a float of 8 bits, as "<f1"
        dtype = np.dtype(f"V{int(typestr[2:])}")
    # Neither they nor bfloat16 are dtypes of NumPy: the array has their name.
    name = str(getattr(array, "dtype", typestr)) if dtype.kind == "V" else dtype.name
    if not dtype.isnative:
        raise byte_swapped(dtype)
    code = code_of(name)
    shape = tuple(map(int, interface["shape"]))
    check_layout(shape, interface.get("strides"), dtype.itemsize)
    address, read_only = interface["data"]
    address = int(address)
    return View(
        address,
        code,
        shape,
        _core.CUDA,
        _ordinal(array, address),
        _stream(array, interface.get("stream")),
        bool(read_only),
    )


def _stream(array: Any, stream: Any) -> int | None:
    if stream is None:
        return None
    if stream == _LEGACY_STREAM:
        return DEFAULT_STREAM
    if stream == 0:
        raise InvalidArgumentError(
            f"{named(array)} names the stream 0, which has no meaning in __cuda_array_interface__: None asks "
            "for no order, 1 is the default stream."
        )
    if stream == _STREAM_OF_THE_THREAD:
        raise InvalidArgumentError(
            f"{named(array)} is used in the default stream of its thread, which other threads cannot name. "
            "Make a stream and use the array in it."
        )
    return int(stream)


def _ordinal(array: Any, address: int) -> int:
    ask = getattr(array, "__dlpack_device__", None)
    if ask is not None:
        return int(ask()[1])
    if not address:
        return 0  # nothing lies anywhere
    ordinal = ctypes.c_int(0)
    try:
        status = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(
            ctypes.byref(ordinal), _ORDINAL, ctypes.c_uint64(address)
        )
    except OSError as error:
        raise InvalidArgumentError(
            f"{named(array)} lies on a device, and the driver cannot be asked on which: {error}."
        ) from error
    if status:
        raise InvalidArgumentError(
            f"{named(array)} lies on a device, and the driver does not say on which (status {status} of "
            "cuPointerGetAttribute). Has a kernel failed, or is this memory that was freed?"
        )
    return ordinal.value
