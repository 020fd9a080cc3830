"""Columns of Arrow as NumPy arrays: the memory of Arrow itself where it has the layout of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

__all__ = ["UnfitValue", "to_array"]


class UnfitValue(Exception):
    """A column has something that has no place in an array. ``row`` says where, ``None`` everywhere;
    ``reason`` is what follows "Column x "."""

    def __init__(self, reason: str, row: int | None) -> None:
        super().__init__(reason, row)
        self.reason = reason
        self.row = row


def to_array(column: pa.ChunkedArray) -> NDArray[Any]:
    """The values of a column as an array that may be written to.

    Returns:
        Shape ``(rows,)``; of lists ``(rows, n)``, of lists of lists ``(rows, n, m)``. Numbers keep their
        dtype; decimals become float64, dates and times ``datetime64`` or ``timedelta64``, texts and bytes
        objects.

    Raises:
        UnfitValue: there is a null, lists differ in length, or no array can have this type.
    """
    parts = [_of_chunk(chunk) for chunk in column.chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    first = 0
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            raise UnfitValue(_differ(parts[0].shape[1:], part.shape[1:]), first)
        first += len(part)
    return np.concatenate(parts)


def _differ(usual: tuple[int, ...], here: tuple[int, ...]) -> str:
    return f"has lists of {_size(here)} values where those before have {_size(usual)}"


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _of_chunk(chunk: pa.Array) -> NDArray[Any]:
    if chunk.null_count:
        row = int(np.argmax(chunk.is_null().to_numpy(zero_copy_only=False)))
        raise UnfitValue("has a null", row)
    kind = chunk.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _of_lists(chunk)
    if types.is_dictionary(kind):
        return _of_chunk(chunk.dictionary_decode())
    if types.is_integer(kind) or types.is_floating(kind):
        return _of_numbers(chunk)
    if types.is_decimal(kind):
        return _of_numbers(chunk.cast(pa.float64()))
    if types.is_boolean(kind) or types.is_temporal(kind) or _is_text(kind):
        values: NDArray[Any] = chunk.to_numpy(zero_copy_only=False)
        return values if values.flags.writeable else values.copy()
    raise UnfitValue(f"has the type {kind}, of which no array can be made", None)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def _of_numbers(chunk: pa.Array) -> NDArray[Any]:
    dtype = np.dtype(chunk.type.to_pandas_dtype())
    buffer = chunk.buffers()[1]
    # The view that Arrow itself gives may not be written to, and PyTorch warns of such.
    values = np.frombuffer(buffer, dtype, count=len(chunk), offset=chunk.offset * dtype.itemsize)
    return values if values.flags.writeable else values.copy()


def _of_lists(chunk: pa.Array) -> NDArray[Any]:
    if types.is_fixed_size_list(chunk.type):
        length = chunk.type.list_size
    else:
        lengths = np.diff(chunk.offsets.to_numpy())
        length = int(lengths[0])
        if (lengths != length).any():
            row = int(np.argmax(lengths != length))
            raise UnfitValue(_differ((length,), (int(lengths[row]),)), row)
    if length == 0:
        return np.empty((len(chunk), 0), np.float64)
    try:
        values = _of_chunk(chunk.flatten())
    except UnfitValue as error:
        row_of = None if error.row is None else error.row // length
        raise UnfitValue(
            f"{error.reason} in a list" if row_of is not None else error.reason, row_of
        ) from None
    return values.reshape(len(chunk), length, *values.shape[1:])
