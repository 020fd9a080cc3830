"""Copies of variables in host memory, in memory that is used again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["VariableCopies"]

_Copy = tuple[Any, np.ndarray[Any, Any]]


class VariableCopies:
    """The last whole copy of some variables, of Keras or TensorFlow, and the memory of the one before for the
    next. So that a copy costs one pass over memory, and one that fails half-way leaves the last as it is."""

    def __init__(self) -> None:
        self._whole: list[_Copy] = []
        self._spare: list[_Copy] = []
        self._new: list[_Copy] = []

    def prepare(self, variables: Sequence[Any]) -> None:
        """Copy ``variables``, with a result on the host."""
        olds = [array for _, array in self._spare]
        olds = olds if len(olds) == len(variables) else [np.empty(0)] * len(variables)
        self._new = [(each, _copied(_held(each), old)) for each, old in zip(variables, olds, strict=True)]

    def adopt(self) -> None:
        """Make the prepared copy the last one."""
        self._spare, self._whole, self._new = self._whole, self._new, []

    def prepared(self) -> list[np.ndarray[Any, Any]]:
        """Arrays of the prepared copy, for callers to overwrite with the content of the next last copy."""
        return [array for _, array in self._new]

    def assign_prepared(self) -> None:
        """Assign what was prepared."""
        _assign(self._new)

    def restore(self) -> None:
        """Assign the last copy."""
        _assign(self._whole)


def _assign(copies: list[_Copy]) -> None:
    for variable, array in copies:
        variable.assign(array.copy())  # JAX goes on to use the memory it is given


def _held(variable: Any) -> np.ndarray[Any, Any]:
    """Return the value of ``variable``, not copied where the framework allows to look at it."""
    each: Any
    for each in (variable, getattr(variable, "value", None)):
        if hasattr(each, "read_value"):  # TensorFlow: numpy() would copy
            return np.asarray(each.read_value())
    return np.asarray(variable.numpy())


def _copied(value: np.ndarray[Any, Any], into: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if (into.shape, into.dtype) != (value.shape, value.dtype):
        return np.array(value, order="C")
    np.copyto(into, value)
    return into
