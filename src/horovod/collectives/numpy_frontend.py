"""NumPy arrays as the core sees them: for frameworks that hand their tensors over as arrays, and for Python
objects and metrics, which belong to no framework.

Has no dtype for bfloat16 and for floats of 8 bits of its own: NumPy knows them only through the package
``ml_dtypes``, whose types are taken if a framework has loaded it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from horovod import _core
from horovod.collectives.forms import Collectives
from horovod.collectives.frontend import Description
from horovod.errors import HorovodError, InvalidArgumentError

__all__ = ["DTYPE_CODES", "NumpyFrontend", "byte_swapped", "collectives"]

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPE_CODES: Final[dict[str, int]] = {
    "uint8": _core.UINT8,
    "int8": _core.INT8,
    "uint16": _core.UINT16,
    "int16": _core.INT16,
    "int32": _core.INT32,
    "int64": _core.INT64,
    "float16": _core.FLOAT16,
    "bfloat16": _core.BFLOAT16,
    "float32": _core.FLOAT32,
    "float64": _core.FLOAT64,
    "bool": _core.BOOL,
    # These are only moved; the core refuses to reduce them.
    "uint32": _core.UINT32,
    "uint64": _core.UINT64,
    "complex64": _core.COMPLEX64,
    "complex128": _core.COMPLEX128,
    "float8_e4m3fn": _core.FLOAT8_E4M3FN,
    "float8_e5m2": _core.FLOAT8_E5M2,
    "float8_e4m3fnuz": _core.FLOAT8_E4M3FNUZ,
    "float8_e5m2fnuz": _core.FLOAT8_E5M2FNUZ,
}
"""Name of a dtype -> its number in the core."""


class NumpyFrontend:
    """Implements :class:`horovod.collectives.frontend.Frontend` for ``numpy.ndarray``."""

    def peek(self, tensor: Array) -> Description | None:
        if tensor.flags.c_contiguous and tensor.dtype.isnative:
            code = DTYPE_CODES.get(tensor.dtype.name)
            if code is not None:
                address: int = tensor.ctypes.data
                return address, address, code, tensor.shape
        return None

    def describe(self, tensor: Array, out: int | None = None) -> Description:
        described = self.peek(tensor) if isinstance(tensor, np.ndarray) else None
        if described is None:
            raise _refusal(tensor)
        return described if out is None else (described[0], out, described[2], described[3])

    def address(self, out: Array) -> int:
        return self.describe(out)[0]

    def compute_threads(self) -> int:
        return len(os.sched_getaffinity(0))

    def dtype_name(self, tensor: Array) -> str:
        return str(tensor.dtype)

    def empty_like(self, tensor: Array) -> Array:
        return np.empty_like(tensor)

    def empty_rows(self, like: Array, rows: int) -> Array:
        return np.empty((rows, *like.shape[1:]), like.dtype)

    def empty_counts(self, count: int) -> Array:
        return np.empty(count, np.int32)

    def contiguous_copy(self, tensor: Array) -> Array:
        return np.array(tensor, order="C", copy=True)

    def from_dlpack(self, capsule: object, like: Array) -> Array:
        made: Array = np.from_dlpack(_Exporter(capsule))  # type: ignore[arg-type]
        return made if made.dtype == like.dtype else made.view(like.dtype)  # floats of 8 bits come as bytes

    def from_bytes(self, data: bytearray) -> Array:
        return np.frombuffer(data, np.uint8)

    def to_bytes(self, tensor: Array) -> bytes:
        return tensor.tobytes()

    def from_integers(self, values: Sequence[int]) -> Array:
        return np.array(values, np.int64)

    def to_integers(self, tensor: Array) -> list[int]:
        integers: list[int] = tensor.tolist()
        return integers


class _Exporter:
    """NumPy takes over memory only from an object that exports it, not from the capsule itself."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # host memory


def byte_swapped(dtype: Any) -> HorovodError:
    """Error for an array whose bytes are in the order of other machines."""
    return InvalidArgumentError(
        f"Array type {dtype} has its bytes in the order of other machines. Pass "
        "array.astype(array.dtype.newbyteorder('='))."
    )


def _refusal(tensor: Any) -> HorovodError:
    if not isinstance(tensor, np.ndarray):
        return InvalidArgumentError(f"Expected a numpy.ndarray, got {type(tensor).__name__}.")
    if not tensor.dtype.isnative:
        return byte_swapped(tensor.dtype)
    if tensor.dtype.name not in DTYPE_CODES:
        return InvalidArgumentError(f"Array type {tensor.dtype} is not supported.")
    return InvalidArgumentError(
        f"Array is required to be contiguous, but has shape {list(tensor.shape)} and strides "
        f"{list(tensor.strides)}. Pass numpy.ascontiguousarray(array)."
    )


collectives: Final[Collectives[Array]] = Collectives(NumpyFrontend())
"""Collectives over arrays. Use these, so that a process has one table of handles for arrays."""
