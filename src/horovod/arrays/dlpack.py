"""Arrays that say where they lie by DLPack.

The capsule is only looked at, never taken: the array itself is kept for as long as its memory is used.

Source: DLPack 1.1 (``dlpack.h``); ``__dlpack__`` and ``__dlpack_device__`` of the array API standard 2024.12.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from horovod import _core
from horovod.arrays.view import View, check_layout, code_of, named
from horovod.errors import InvalidArgumentError

__all__ = ["read"]

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_DEVICES: Final = {_CPU: _core.HOST, _CUDA_HOST: _core.HOST, _CUDA: _core.CUDA, _CUDA_MANAGED: _core.CUDA}
_OTHERS: Final = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 11: "ROCm's pinned memory", 14: "oneAPI"}
_LEGACY_STREAM: Final = 1
_TYPES: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_TYPES_OF_8_BITS: Final = {
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
}
_READ_ONLY, _COPIED = 1, 2


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


def read(array: Any) -> View:
    """View the memory of ``array``.

    Raises:
        InvalidArgumentError: its device or dtype is not supported, or it is not contiguous; or it does not
            export its own memory.
    """
    kind, index = map(int, array.__dlpack_device__())
    if kind not in _DEVICES:
        where = _OTHERS.get(kind, f"device type {kind} of DLPack")
        raise InvalidArgumentError(
            f"{named(array)} lies in memory of {where}: memory of the host and of CUDA devices is served."
        )
    device = _DEVICES[kind]
    capsule = _exported(array, {"stream": _LEGACY_STREAM} if device == _core.CUDA else {})
    tensor, read_only = _tensor(array, capsule)
    dtype = _TYPES.get(tensor.type_code, f"type {tensor.type_code} of DLPack")
    if tensor.lanes != 1:
        dtype = f"{dtype}{tensor.bits} of {tensor.lanes} lanes"
    elif tensor.type_code in _TYPES_OF_8_BITS:
        dtype = _TYPES_OF_8_BITS[tensor.type_code]
    elif dtype != "bool":
        dtype = f"{dtype}{tensor.bits}"
    shape = tuple(tensor.shape[: tensor.ndim])
    check_layout(shape, tensor.strides[: tensor.ndim] if tensor.strides else None, 1)
    address = (tensor.data or 0) + tensor.byte_offset
    return View(address, code_of(dtype), shape, device, index if device else 0, None, read_only)


def _exported(array: Any, how: dict[str, int]) -> object:
    try:
        try:
            return array.__dlpack__(max_version=(1, 1), **how)
        except TypeError:  # of before 2023
            return array.__dlpack__(**how)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{named(array)} does not export its memory: {error}") from error


def _tensor(array: Any, capsule: object) -> tuple[_Tensor, bool]:
    """The description in ``capsule``, which keeps it alive; and whether it may only be read."""
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    if not _is_valid(capsule, b"dltensor_versioned"):
        raise InvalidArgumentError(f"{named(array)} exports no capsule of DLPack: {capsule!r:.80}.")
    versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
    if versioned.major != 1:
        raise InvalidArgumentError(f"{named(array)} speaks DLPack {versioned.major}; 1 is understood.")
    if versioned.flags & _COPIED:
        raise InvalidArgumentError(f"{named(array)} exports a copy of its memory. Pass a contiguous array.")
    return versioned.tensor, bool(versioned.flags & _READ_ONLY)
