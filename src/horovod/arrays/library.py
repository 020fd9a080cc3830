"""The library that an array belongs to, which makes the arrays of results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from horovod import _core
from horovod.arrays.view import View, named
from horovod.collectives.numpy_frontend import DTYPE_CODES
from horovod.errors import InvalidArgumentError

__all__ = ["empty", "check_served", "library_of", "numpy_dtype", "origin"]

# What has a frontend of its own, or tensors that nobody may write into.
_OTHERS: Final = {
    "torch": "horovod.torch takes tensors of PyTorch.",
    "tensorflow": "horovod.tensorflow takes tensors of TensorFlow.",
    "jax": "Nobody may write into those. Pass numpy.asarray(array); jax.numpy.asarray takes the result.",
}
_OTHERS["jaxlib"] = _OTHERS["jax"]
_NAMES: Final = {code: name for name, code in DTYPE_CODES.items()}


def origin(array: Any) -> str:
    """The name of the library that the type of ``array`` comes from."""
    return type(array).__module__.partition(".")[0]


def check_served(array: Any) -> None:
    """Refuse what other parts of this package serve.

    Raises:
        InvalidArgumentError: with what to call instead.
    """
    other = _OTHERS.get(origin(array))
    if other is not None:
        raise InvalidArgumentError(f"horovod.arrays does not take {named(array)}. {other}")


def library_of(array: Any) -> Any:
    """The namespace that makes such arrays; ``None`` if it is not known."""
    ask = getattr(array, "__array_namespace__", None)
    if ask is not None:
        return ask()
    module = sys.modules.get(origin(array))
    return module if callable(getattr(module, "empty", None)) else None


def numpy_dtype(code: int) -> np.dtype[Any]:
    """The dtype of NumPy, which knows bfloat16 if ``ml_dtypes`` has been imported."""
    return np.dtype(_NAMES[code])


def empty(like: Any, view: View, shape: Sequence[int]) -> Any:
    """A new array of the library and dtype of ``like``, where that lies, with any content.

    Args:
        view: of ``like``.

    Raises:
        InvalidArgumentError: its library is not known, and it lies on a device.
    """
    shape = tuple(shape)
    library = library_of(like)
    if library is not None:
        return _by_namespace(library, like, shape)
    if view.device == _core.HOST:
        return np.empty(shape, numpy_dtype(view.code))
    if origin(like) == "numba":
        cuda = sys.modules["numba.cuda"]
        with cuda.gpus[view.ordinal]:
            return cuda.device_array(shape, like.dtype)
    raise InvalidArgumentError(
        f"{named(like)} lies on a device, and nothing is known that makes such arrays: it has no "
        f"__array_namespace__, and the module {origin(like)} has no function empty. Use the forms that work "
        "in place, or pass arrays of CuPy."
    )


def _by_namespace(library: Any, like: Any, shape: tuple[int, ...]) -> Any:
    device: Any = getattr(like, "device", None)
    if hasattr(device, "__enter__"):  # CuPy's: the current one is that of `empty`
        with device:
            return library.empty(shape, dtype=like.dtype)
    with contextlib.suppress(TypeError):  # older ones take no device
        return library.empty(shape, dtype=like.dtype, device=device)
    return library.empty(shape, dtype=like.dtype)
