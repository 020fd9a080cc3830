"""Batches of arrays as tensors of PyTorch, in the same memory."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import from_numpy

from horovod.errors import InvalidArgumentError

__all__ = ["as_tensors"]


def as_tensors(batch: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """The columns of a batch as tensors, which share their memory.

    Raises:
        ValueError: a column has values that PyTorch does not know: texts or dates.
    """
    try:
        return {name: from_numpy(values) for name, values in batch.items()}
    except TypeError:
        name = next(name for name, values in batch.items() if not _known(values))
        raise InvalidArgumentError(
            f"Column {name!r} has values of type {batch[name].dtype}, of which PyTorch has no tensors. Make "
            "numbers of them before training, or leave the column out."
        ) from None


def _known(values: NDArray[Any]) -> bool:
    try:
        from_numpy(values)
    except TypeError:
        return False
    return True
