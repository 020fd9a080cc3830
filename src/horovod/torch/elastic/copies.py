"""Copies of state dicts, in memory that is used again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["Copies", "copied"]

_SCALARS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)


class Copies:
    """The last whole copy of something, and the memory of the one before for the next.

    So that a copy costs one pass over memory, and one that fails half-way leaves the last as it is. Tensors
    stay on their device; there they are copied on the current stream, and the host does not wait.
    """

    def __init__(self) -> None:
        self._whole: Any = None
        self._spare: Any = None
        self._new: Any = None
        self._equal: _Equal = {}

    def prepare(self, value: Any) -> None:
        """Copy `value`, a nest of containers."""
        self._new = copied(value, into=self._spare)

    def adopt(self) -> None:
        """What was prepared is the last copy from now on."""
        self._spare, self._whole, self._new = self._whole, self._new, None
        self._equal = {}

    def note_equal(self, value: Any) -> None:
        """`value` is equal to the last copy now: what is not written to until :meth:`renew` need not be
        copied there. PyTorch counts how often a tensor is written to, except through ``tensor.data`` and
        other libraries."""
        self._equal = {
            _place(tensor): (tensor, tensor._version, copy)
            for tensor, copy in _tensors(value, self._whole)
            if not tensor.is_inference()
        }

    def forget_equal(self) -> None:
        """It may have been written to in ways that are not counted."""
        self._equal = {}

    def renew(self, value: Any) -> None:
        """Copy `value`, where the last copy is wanted no more. Its memory is used as long as there was no
        other before, as new memory takes longer than the copy, and where it is known to be equal."""
        if self._spare is None or self._equal:
            self._whole = _Pass(self._equal).copy(value, self._whole)
            self._equal = {}
        else:
            self.prepare(value)
            self.adopt()

    def fresh(self) -> Any:
        """A copy of the last copy, for whoever keeps or changes it."""
        return copied(self._whole)


_Equal = dict[Any, tuple[torch.Tensor, int, torch.Tensor]]
"""By the place of a tensor: the tensor, so that no other comes to its place; how often it was written to; and
its copy."""


def copied(value: Any, into: Any = None) -> Any:
    """A deep copy of `value`, a nest of dicts, lists and tuples.

    Args:
        into: an older copy, whose tensors and arrays are used again where they fit. Nothing of it may be
            in use.
    """
    return _Pass().copy(value, into)


class _Pass:
    def __init__(self, equal: _Equal | None = None) -> None:
        self._equal = equal or {}  # copies that need not be made
        self._made: dict[Any, Any] = {}  # what was met before, so that what is shared is copied once
        self._memo: dict[int, Any] = {}  # the same for copy.deepcopy
        self._used: set[int] = set()  # memory that is taken

    def copy(self, value: Any, into: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is torch.Tensor and value.layout is torch.strided and not value.requires_grad:
            # Tied weights are other objects at the same place each time.
            place = _place(value)
            _, version, made = self._equal.get(place, (None, None, None))
            if made is into and made is not None and value._version == version:
                return self._once(place, value, into, _as_it_is)
            return self._once(place, value, into, _tensor)
        if kind is np.ndarray and not value.dtype.hasobject:
            return self._once(id(value), value, into, _array)
        if kind is dict or kind is OrderedDict:
            return self._dict(value, into if type(into) is kind else {})
        if kind is list or kind is tuple:
            olds = into if type(into) is kind and len(into) == len(value) else [None] * len(value)
            return kind(self.copy(each, old) for each, old in zip(value, olds, strict=True))
        return copy.deepcopy(value, self._memo)

    def _once(self, key: Any, value: Any, into: Any, make: Callable[[Any, Any], Any]) -> Any:
        if key not in self._made:
            # What was tied in the older copy may be no more.
            made = self._made[key] = make(value, None if id(into) in self._used else into)
            self._used.add(id(made))
        return self._made[key]

    def _dict(self, value: dict[Any, Any], into: dict[Any, Any]) -> dict[Any, Any]:
        made = type(value)()
        for key, each in value.items():
            made[key] = self.copy(each, into.get(key))
        if attributes := getattr(value, "__dict__", None):
            vars(made).update(copy.deepcopy(attributes, self._memo))  # the versions of a module's parts
        return made


def _place(value: torch.Tensor) -> Any:
    return (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)


def _tensors(value: Any, copy: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors in `value` with those of its copy."""
    if type(value) is torch.Tensor and type(copy) is torch.Tensor:
        yield value, copy
    elif isinstance(value, dict) and isinstance(copy, dict):
        for key, each in value.items():
            yield from _tensors(each, copy.get(key))
    elif isinstance(value, list | tuple) and isinstance(copy, list | tuple):
        for each, other in zip(value, copy, strict=False):
            yield from _tensors(each, other)


def _as_it_is(value: torch.Tensor, into: Any) -> Any:
    return into


def _tensor(value: torch.Tensor, into: Any) -> torch.Tensor:
    if (
        type(into) is torch.Tensor
        and (into.dtype, into.shape, into.device) == (value.dtype, value.shape, value.device)
        and into.stride() == value.stride()
        and not into.requires_grad
    ):
        with torch.no_grad():
            return into.copy_(value)
    return value.detach().clone()


def _array(value: np.ndarray[Any, Any], into: Any) -> np.ndarray[Any, Any]:
    fits = type(into) is np.ndarray and (into.dtype, into.shape) == (value.dtype, value.shape)
    if fits and into.flags.writeable:
        np.copyto(into, value)
        return into  # type: ignore[no-any-return]
    return value.copy()
