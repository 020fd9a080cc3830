"""Arrays of any library as the core sees them, by interfaces that libraries agree on: none is imported."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from horovod import _core
from horovod.arrays import cuda_array_interface, dlpack
from horovod.arrays.library import check_served, empty, library_of, numpy_dtype
from horovod.arrays.view import View, named
from horovod.collectives.forms import Collectives
from horovod.collectives.frontend import Description
from horovod.collectives.numpy_frontend import NumpyFrontend
from horovod.errors import InvalidArgumentError

__all__ = ["ArrayFrontend", "collectives", "new_output", "new_outputs", "writable"]

_ROWS: Final = slice(1, None)


def _view(array: Any) -> View:
    """View the memory of an array that is not one of NumPy.

    Raises:
        InvalidArgumentError: it is no array, or one that cannot be worked on.
    """
    check_served(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return cuda_array_interface.read(array, interface)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return dlpack.read(array)
    raise InvalidArgumentError(
        f"Expected an array, got {named(array)}: an array of NumPy, or of a library that knows "
        "__cuda_array_interface__ or DLPack. Pass numpy.asarray(value)."
    )


class ArrayFrontend(NumpyFrontend):
    """Implements :class:`horovod.collectives.frontend.DeviceFrontend` for arrays of any library. What is in
    host memory is NumPy's, unless it belongs to another library."""

    def peek(self, tensor: Any) -> Description | None:
        return super().peek(tensor) if isinstance(tensor, np.ndarray) else None

    def describe(self, tensor: Any, out: int | None = None) -> Description:
        if isinstance(tensor, np.ndarray):
            if isinstance(tensor, np.ma.MaskedArray):
                raise InvalidArgumentError(
                    "Array is masked, and a collective works on all elements. Pass array.filled(value)."
                )
            return super().describe(tensor, out)
        view = _view(tensor)
        place = () if view.device == _core.HOST else (view.device, view.ordinal, view.stream)
        return view.address, view.address if out is None else out, view.code, view.shape, *place

    def dtype_name(self, tensor: Any) -> str:
        return str(getattr(tensor, "dtype", type(tensor)))

    def empty_like(self, tensor: Any) -> Any:
        if isinstance(tensor, np.ndarray):
            return np.empty(tensor.shape, tensor.dtype)
        view = _view(tensor)
        return self._made(tensor, view, view.shape)

    def empty_rows(self, like: Any, rows: int) -> Any:
        if isinstance(like, np.ndarray):
            return super().empty_rows(like, rows)
        view = _view(like)
        return self._made(like, view, (rows, *view.shape[_ROWS]))

    def from_dlpack(self, capsule: object, like: Any) -> Any:
        library = None if isinstance(like, np.ndarray) else library_of(like)
        if library is not None and hasattr(library, "from_dlpack"):
            made = library.from_dlpack(_Exporter(capsule))
        else:
            made = _over(capsule)
        return made if made.dtype == like.dtype else made.view(like.dtype)  # floats of 8 bits come as bytes

    def from_device(self, result: _core.DeviceResult, like: Any) -> Any:
        made = self._made(like, _view(like), result.shape)
        view = _view(made)
        result.deliver(view.address, view.stream)
        return made

    def current_stream(self, device: int) -> int | None:
        """CuPy has one. Of others it is known for each array only."""
        cupy = sys.modules.get("cupy")
        if cupy is None:
            return None
        stream: int = cupy.cuda.get_current_stream(device).ptr
        return stream

    def _made(self, like: Any, view: View, shape: tuple[int, ...]) -> Any:
        made = empty(like, view, shape)
        got = (_view(made) if not isinstance(made, np.ndarray) else None) or view
        if (got.code, got.device, got.ordinal) != (view.code, view.device, view.ordinal):
            raise InvalidArgumentError(
                f"The library of {named(like)} has made an array of another dtype or on another device than "
                f"the one that was given: {made.dtype} on device {got.ordinal}, not {view.ordinal}."
            )
        writable(made)
        return made


class _Exporter:
    """Memory that the engine has allocated, as libraries take it over."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # host memory


def _over(capsule: object) -> Any:
    """Memory of the engine as an array of NumPy that may be written into, of any dtype: NumPy's own
    ``from_dlpack`` makes read-only ones, and knows no bfloat16."""
    view = dlpack.read(_Exporter(capsule))
    return np.asarray(_Memory(capsule, view)).view(numpy_dtype(view.code))


class _Memory:
    """Keeps the capsule while there are arrays over its memory."""

    def __init__(self, capsule: object, view: View) -> None:
        self._capsule = capsule
        dtype = numpy_dtype(view.code)
        self.__array_interface__ = {
            "data": (view.address, False),
            "shape": view.shape,
            "typestr": dtype.str if dtype.isbuiltin == 1 else f"<u{dtype.itemsize}",
            "version": 3,
        }


def writable(array: Any) -> Any:
    """``array``, for a result to be written into.

    Raises:
        InvalidArgumentError: it is read-only.
    """
    locked = not array.flags.writeable if isinstance(array, np.ndarray) else _view(array).read_only
    if locked:
        raise InvalidArgumentError(
            f"Array ({named(array)}) is read-only, and the result is to be written into it. Pass a copy, or "
            "use the form that returns a new array."
        )
    return array


def new_output(array: Any) -> Any:
    """Memory for the result of ``array``."""
    return collectives.frontend.empty_like(array)


def new_outputs(arrays: Any) -> list[Any]:
    """Memory for the results of ``arrays``."""
    return list(map(new_output, arrays))


collectives: Final[Collectives[Any]] = Collectives(ArrayFrontend())
"""The collectives over arrays of any library, with all outstanding handles."""
