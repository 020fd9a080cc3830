"""Alltoall of arrays in its forms (see ``mpi_ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.arrays.frontend import collectives
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["alltoall", "alltoall_async"]


def alltoall(
    tensor: Any,
    splits: Sequence[int] | Any | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send consecutive rows of ``tensor`` to each member and return those that came.

    Args:
        tensor: shape ``(rows, *rest)``, contiguous; ``rest`` and dtype are the same on every member.
        splits: ``splits[i]`` rows go to set rank i: an array in host memory or any sequence of integers, one
            for each member, each 0 or more. Their sum may be less than ``rows``; the last rows then go
            nowhere. By default (also: empty) each member gets equally many.
        name: identity across ranks; by default derived from the order of calls.
        process_set: ranks that take part.

    Returns:
        The rows from all members, in the order of set ranks; if ``splits`` is given, as a pair with the
        numbers of rows that came from each: an int32 array of NumPy.

    Raises:
        ValueError: on this rank alone: no dimensions; ``splits`` with another length, no integers, negative,
            or more than there are; without ``splits`` a number of rows that the members do not divide; not
            initialised.
        HorovodInternalError: ranks disagree; a rank was lost.
    """
    if splits is None:
        return collectives.run_even_alltoall(tensor, name, process_set)
    return collectives.run_alltoall(tensor, _read_splits(splits), name, process_set)


def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | Any | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """:func:`alltoall` without waiting; returns a handle, whose result is the pair of rows and received
    numbers, also without ``splits``."""
    return collectives.alltoall(tensor, _read_splits(splits), name, process_set)


def _read_splits(splits: Any) -> list[int]:
    lifecycle.current()  # before init that is the error, whatever the splits are
    if splits is None:
        return []
    try:
        numbers = np.asarray(splits)
    except Exception as error:  # of a library: an array that lies on a device, say
        raise InvalidArgumentError(
            f"splits must be integers in host memory, got {type(splits).__name__}: {error}"
        ) from error
    if numbers.ndim != 1:
        raise InvalidArgumentError(f"splits must have one dimension, got shape {list(numbers.shape)}.")
    if numbers.size and numbers.dtype.kind not in "iu":
        raise InvalidArgumentError(f"splits must be integers, got {numbers.dtype}.")
    sizes: list[int] = numbers.tolist()
    return sizes
