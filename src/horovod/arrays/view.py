"""View of an array's memory: the content of its interface, checked, in the terms of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from horovod import _core
from horovod.collectives.numpy_frontend import DTYPE_CODES
from horovod.errors import InvalidArgumentError

__all__ = ["View", "check_layout", "code_of", "named"]

DEFAULT_STREAM: Final = 0


class View(NamedTuple):
    """An array as contiguous memory.

    ``address``: 0 if it has no elements. ``code``: of the dtype. ``device``: kind; ``ordinal``: its number
    among those. ``stream``: in whose order the content is there; 0: the default stream of CUDA;
    ``None``: not known, whoever waits for the result waits on the host.
    """

    address: int
    code: int
    shape: tuple[int, ...]
    device: int = _core.HOST
    ordinal: int = 0
    stream: int | None = DEFAULT_STREAM
    read_only: bool = False


def named(array: Any) -> str:
    """Name an array for a sentence: ``cupy.ndarray``."""
    kind = type(array)
    module = kind.__module__.partition(".")[0]
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"


def code_of(dtype: str) -> int:
    """The code of a dtype by its name in NumPy.

    Raises:
        InvalidArgumentError: it is not supported.
    """
    code = DTYPE_CODES.get(dtype)
    if code is None:
        raise InvalidArgumentError(f"Array type {dtype} is not supported.")
    return code


def check_layout(shape: Sequence[int], strides: Sequence[int] | None, step: int) -> None:
    """Refuse what does not lie in one piece, in row-major order.

    Args:
        strides: ``None``: it does. step: stride of neighbours, in the unit of ``strides``.

    Raises:
        InvalidArgumentError: it does not.
    """
    if strides is None or 0 in shape:
        return
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            raise InvalidArgumentError(
                f"Array is required to be contiguous, but has shape {list(shape)} and strides "
                f"{list(strides)}. Pass ascontiguousarray(array) of its library."
            )
        step *= extent
