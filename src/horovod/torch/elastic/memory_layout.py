"""Layout of the tensors of a saved state in one run of memory."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Entry", "MemoryLayout", "place_of"]

_LINE = 64  # bytes


class Entry(NamedTuple):
    """One tensor. ``path`` has the keys that lead to it; tied tensors have the first one."""

    path: str
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    begin: int


class MemoryLayout:
    """A place for each tensor of a nest of dicts, lists and tuples that is in host memory, without gaps and
    without a history of gradients. Other tensors, and what is no tensor, have none.

    Ranks whose nests have equal tensors at equal paths find the same places.

    Attributes:
        entries: in the order of their paths.
        sources: for each entry, the :func:`place_of` its tensor.
        size: bytes of all.
    """

    def __init__(self, value: Any) -> None:
        found: dict[Any, tuple[str, torch.Tensor]] = {}
        _find(value, "", found)
        listed = sorted(found.items(), key=lambda item: item[1][0])
        self.sources = [place for place, _ in listed]
        entries: list[Entry] = []
        self.size = 0
        for _, (path, tensor) in listed:
            entries.append(Entry(path, tensor.dtype, tensor.shape, tensor.stride(), self.size))
            self.size += -(-tensor.nbytes // _LINE) * _LINE
        self.entries = tuple(entries)

    @property
    def digest(self) -> bytes:
        """Equal on ranks that have found the same places."""
        return hashlib.sha256(repr(self.entries).encode()).digest()

    def views(self, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[torch.Tensor, ...]:
        """For each entry a tensor that lies in `memory`."""
        whole = torch.from_numpy(memory)
        views = []
        for entry in self.entries:
            size = entry.shape.numel() * entry.dtype.itemsize
            flat = whole[entry.begin : entry.begin + size].view(entry.dtype)
            views.append(flat.as_strided(entry.shape, entry.stride))
        return tuple(views)


def place_of(value: torch.Tensor) -> Any:
    """Describe the place and layout of a tensor: equal for tied tensors."""
    return (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)


def _find(value: Any, path: str, found: dict[Any, tuple[str, torch.Tensor]]) -> None:
    # Only the containers that a copy goes into, see `copies.py`: a place that is not filled is never found.
    kind = type(value)
    if kind is torch.Tensor:
        if _is_placed(value):
            place = place_of(value)
            if place not in found or path < found[place][0]:
                found[place] = (path, value)
    elif kind is dict or kind is OrderedDict:
        for key, each in value.items():
            _find(each, f"{path}/{key!r}", found)
    elif kind is list or kind is tuple:
        for number, each in enumerate(value):
            _find(each, f"{path}/{number}", found)


def _is_placed(value: torch.Tensor) -> bool:
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.requires_grad
        and not value.is_quantized
        and value.numel() > 0
        and _is_dense(value)
    )


def _is_dense(value: torch.Tensor) -> bool:
    if value.is_contiguous():
        return True
    kind = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return kind is not None and value.is_contiguous(memory_format=kind)
