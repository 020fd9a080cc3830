"""Copies of state dicts, in memory that is used again and that other ranks of the host can have."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from horovod.elastic.state_memory import Loan, StateMemory
from horovod.torch.elastic.memory_layout import Entry, MemoryLayout, place_of

__all__ = ["Copies", "Lent", "copied"]

_SCALARS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)

_LEAST_BYTES = 1 << 20
"""To copy less costs less than to agree on who has it."""

_SPARES = 2

Lent = tuple[bytes, Loan]
"""Digest of the tensors' places in lent memory, and the place of that memory."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """A copy, and where its tensors lie that have an entry; no memory: each has its own."""

    value: Any = None
    entries: tuple[Entry, ...] = ()
    memory: StateMemory | None = None
    views: tuple[torch.Tensor, ...] = ()

    @property
    def is_borrowed(self) -> bool:
        return self.memory is not None and not self.memory.owned

    @property
    def is_writable(self) -> bool:
        return self.memory is None or self.memory.writable()

    def fits(self, placement: MemoryLayout) -> bool:
        """Return whether the memory can hold a copy. That of single tensors can, for those that fit."""
        return self.memory is None or self.entries == placement.entries

    def places(self, placement: MemoryLayout) -> dict[Any, torch.Tensor]:
        """Map the place of each tensor with an entry to the view that it is copied to."""
        return {} if self.memory is None else dict(zip(placement.sources, self.views, strict=True))


class Copies:
    """The last whole copy of something, and the memory of the one before for the next.

    So that a copy costs one pass over memory, and one that fails half-way leaves the last as it is. Tensors
    stay on their device; there they are copied on the current stream, and the host does not wait. Those in
    host memory lie in a :class:`~horovod.elastic.state_memory.StateMemory`, so that other ranks of the host
    can have the last copy without making one.
    """

    def __init__(self) -> None:
        self._whole = _Kept()
        self._spares: list[_Kept] = []  # the older first
        self._new: _Kept | None = None
        self._source: _Kept | None = None  # the spare whose memory it has
        self._equal: _Equal = {}

    def prepare(self, value: Any) -> None:
        """Copy `value`, a nest of containers."""
        placement = MemoryLayout(value)
        self._new = None
        kept = self._source = self._memory_for(placement)
        made = _Pass(into=kept.places(placement)).copy(value, kept.value)
        self._new = replace(kept, value=made, entries=placement.entries)

    def adopt(self) -> None:
        """Make the prepared copy the last one."""
        assert self._new is not None
        last, self._whole, self._new = self._whole, self._new, None
        spares = [each for each in self._spares if each is not self._source]
        if last.value is not None and not last.is_borrowed:
            spares.append(last)
        self._spares, self._source = spares[-_SPARES:], None
        self._equal = {}

    def note_equal(self, value: Any) -> None:
        """`value` is equal to the last copy now: what is not written to until :meth:`renew` need not be
        copied there. PyTorch counts how often a tensor is written to, except through ``tensor.data`` and
        other libraries."""
        self._equal = {
            place_of(tensor): (tensor, tensor._version, copy)
            for tensor, copy in _tensors(value, self._whole.value)
            if not tensor.is_inference()
        }

    def forget_equal(self) -> None:
        """Forget which tensors are equal to the last copy: they may have been written to in ways that are not
        counted.
        """
        self._equal = {}

    def lend(self, value: Any) -> Lent | None:
        """Let others of the host have the last copy. None if it is not known to be equal to `value`, or has
        no memory that can be lent. Call :meth:`settle` when all have it."""
        placement = MemoryLayout(value)
        memory = self._whole.memory
        if memory is None or not self._is_known(value, placement):
            return None
        return placement.digest, memory.lend()

    def settle(self) -> None:
        """Note that everybody who wants the lent memory has it."""
        if self._whole.memory is not None:
            self._whole.memory.settle()

    def borrow(self, value: Any, lent: Lent | None) -> None:
        """Prepare a copy of `value` that is that of the lender, if there is one and this rank can have it.
        The tensors in `value` are equal to those of the lender."""
        self._new = self._source = None
        if lent is None:
            return
        placement = MemoryLayout(value)
        if lent[0] != placement.digest:
            return
        memory = StateMemory.borrowed(lent[1])
        if memory is None:
            return
        views = placement.views(memory.content)
        made = _Pass(as_is=dict(zip(placement.sources, views, strict=True))).copy(value, None)
        self._new = _Kept(made, placement.entries, memory, views)

    def renew(self, value: Any) -> None:
        """Copy `value`, where the last copy is wanted no more, or adopt what was borrowed. The memory of the
        last copy is used as long as there was no other before, as new memory takes longer than the copy, and
        where it is known to be equal."""
        if self._new is not None and self._new.is_borrowed:
            self.adopt()
            return
        placement = MemoryLayout(value)
        fits = self._whole.entries == placement.entries and (not self._spares or self._equal)
        if fits and (self._is_known(value, placement) or self._whole.is_writable):
            passing = _Pass(self._equal, into=self._whole.places(placement))
            self._whole = replace(self._whole, value=passing.copy(value, self._whole.value))
            self._equal = {}
        else:
            self.prepare(value)
            self.adopt()

    def fresh(self) -> Any:
        """A copy of the last copy, for whoever keeps or changes it."""
        return copied(self._whole.value)

    def _memory_for(self, placement: MemoryLayout) -> _Kept:
        """The oldest spare that fits and that nobody else has, or new memory. Other spares are let go of."""
        self._spares = [each for each in self._spares if each.is_writable and each.fits(placement)]
        if placement.size >= _LEAST_BYTES:
            for spare in self._spares:
                if spare.memory is not None:
                    return spare
            if (memory := StateMemory.made(placement.size)) is not None:
                self._spares = []
                return _Kept(None, placement.entries, memory, placement.views(memory.content))
        return self._spares[0] if self._spares else _Kept()

    def _is_known(self, value: Any, placement: MemoryLayout) -> bool:
        """Return whether `value` is known to be equal to the last copy."""
        return self._whole.entries == placement.entries and all(
            _is_equal(self._equal, place_of(tensor), tensor, copy)
            for tensor, copy in _tensors(value, self._whole.value)
        )


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
    """One walk through a nest.

    Args:
        equal: copies that need not be made.
        into: where tensors are copied to, by their place.
        as_is: copies that are there, by the place of the tensor.
    """

    def __init__(
        self,
        equal: _Equal | None = None,
        into: Mapping[Any, torch.Tensor] | None = None,
        as_is: Mapping[Any, torch.Tensor] | None = None,
    ) -> None:
        self._equal = equal or {}
        self._into = into or {}
        self._as_is = as_is or {}
        self._made: dict[Any, Any] = {}  # what was met before, so that what is shared is copied once
        self._memo: dict[int, Any] = {}  # the same for copy.deepcopy
        self._used: set[int] = set()  # memory that is taken

    def copy(self, value: Any, into: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is torch.Tensor and value.layout is torch.strided and not value.requires_grad:
            # Tied weights are other objects at the same place each time.
            place = place_of(value)
            if (made := self._as_is.get(place)) is not None:
                return self._once(place, value, made, _as_it_is)
            into = self._into.get(place, into)
            same = _is_equal(self._equal, place, value, into)
            return self._once(place, value, into, _as_it_is if same else _tensor)
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


def _is_equal(equal: _Equal, place: Any, tensor: torch.Tensor, copy: Any) -> bool:
    _, version, made = equal.get(place, (None, None, None))
    return made is not None and made is copy and tensor._version == version


def _tensors(value: Any, copy: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The dense tensors in `value` with those of its copy."""
    if type(value) is torch.Tensor and type(copy) is torch.Tensor:
        if value.layout is torch.strided:
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
