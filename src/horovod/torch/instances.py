"""Optimizers as they are: what an instance holds, and copies of it that need no constructor."""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Iterator
from typing import Any

import torch

__all__ = ["Plain", "attributes_of", "slots_of"]

_NO_STATE_OF_ITS_OWN = (torch.optim.Optimizer.__getstate__, getattr(object, "__getstate__", None), None)


def attributes_of(optimizer: Any, owner: Any) -> dict[str, Any]:
    """The attributes of ``optimizer``; methods of ``optimizer`` among them become methods of ``owner``. A
    ``step`` that was replaced remains one of ``optimizer``."""
    return {
        name: types.MethodType(value.__func__, owner)
        if isinstance(value, types.MethodType) and value.__self__ is optimizer and name != "step"
        else value
        for name, value in vars(optimizer).items()
    }


def slots_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Attributes that the classes of ``optimizer`` keep in ``__slots__``."""
    for kind in type(optimizer).__mro__:
        for name, slot in vars(kind).items():
            if inspect.ismemberdescriptor(slot) and hasattr(optimizer, name):
                yield name, getattr(optimizer, name)


class Plain:
    """An optimizer while it is copied or pickled; the copy is an instance of ``kind``. Unlike PyTorch's own
    copies, it keeps what a class of the user holds besides groups and state. Hooks of the user are left out.

    Args:
        kind: the class of ``optimizer``, or the one that it wraps.
        without: names of attributes to leave out.
    """

    def __init__(self, optimizer: Any, kind: type, without: Collection[str] = ()) -> None:
        self._optimizer = optimizer
        self._kind: Any = kind
        self._without = without

    def __reduce__(self) -> tuple[Any, ...]:
        kind, slots = self._kind, dict(slots_of(self._optimizer))
        if getattr(kind, "__getstate__", None) not in _NO_STATE_OF_ITS_OWN:
            plain = _blank(kind, slots)
            vars(plain).update(self._attributes(plain))
            return _blank, (kind, slots), plain.__getstate__()
        if getattr(kind.step, "hooked", False) or not hasattr(kind, "__setstate__"):
            return _blank, (kind, slots), self._attributes(self)
        # Its `__setstate__` would change the class, for instances that never called PyTorch's constructor.
        return _blank, (kind, slots, self._attributes(self))

    def _attributes(self, owner: Any) -> dict[str, Any]:
        return {
            name: value
            for name, value in attributes_of(self._optimizer, owner).items()
            if name != "step"
            and name not in self._without
            and not (name.startswith("_optimizer_") and name.endswith("_hooks"))
        }


def _blank(kind: Any, slots: dict[str, Any], attributes: dict[str, Any] | None = None) -> Any:
    """An instance of ``kind`` whose constructor has not been called."""
    made = kind.__new__(kind)
    vars(made).update(attributes or {})
    for name, value in slots.items():
        setattr(made, name, value)
    return made
