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


def to_array(values: pa.Array, usual: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Values of a column as an array that may be written to.

    Args:
        usual: the shape of the rows before; ``None``: these are the first ones.

    Returns:
        Shape ``(rows,)``; of lists ``(rows, n)``, of lists of lists ``(rows, n, m)``. Numbers keep their
        dtype; decimals become float64, dates and times ``datetime64`` or ``timedelta64``, texts and bytes
        objects.

    Raises:
        UnfitValue: there is a null, lists differ in length, or no array can have this type.
    """
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise UnfitValue("has a null", row)
    kind = values.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _of_lists(values, usual)
    if types.is_dictionary(kind):
        return to_array(values.dictionary_decode())
    if types.is_integer(kind) or types.is_floating(kind):
        return _of_numbers(values)
    if types.is_decimal(kind):
        return _of_numbers(values.cast(pa.float64()))
    if types.is_boolean(kind) or types.is_temporal(kind) or _is_text(kind):
        array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return array if array.flags.writeable else array.copy()
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


def _of_lists(lists: pa.Array, usual: tuple[int, ...] | None) -> NDArray[Any]:
    if types.is_fixed_size_list(lists.type):
        length = lists.type.list_size
    else:
        lengths = np.diff(lists.offsets.to_numpy())
        length = usual[0] if usual else int(lengths[0])
        if (lengths != length).any():
            row = int(np.argmax(lengths != length))
            raise UnfitValue(f"has lists of {lengths[row]} values where those before have {length}", row)
    if length == 0:
        return np.empty((len(lists), 0), np.float64)
    try:
        values = to_array(lists.flatten(), usual[1:] if usual else None)
    except UnfitValue as error:
        row_of = None if error.row is None else error.row // length
        raise UnfitValue(
            f"{error.reason} in a list" if row_of is not None else error.reason, row_of
        ) from None
    return values.reshape(len(lists), length, *values.shape[1:])
