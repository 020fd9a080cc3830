"""Batches of arrays as tensors of PyTorch, in the same memory."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from horovod.errors import InvalidArgumentError

__all__ = ["as_tensors"]


def as_tensors(batch: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """The columns of a batch as tensors, which share their memory.

    Raises:
        ValueError: a column has values that PyTorch does not know: texts or dates.
    """
    tensors = {}
    for name, values in batch.items():
        try:
            tensors[name] = torch.from_numpy(values)
        except TypeError:
            raise InvalidArgumentError(
                f"Column {name!r} has values of type {values.dtype}, of which PyTorch has no tensors. Make "
                "numbers of them before training, or leave the column out."
            ) from None
    return tensors
