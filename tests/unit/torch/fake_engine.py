"""An engine for tests of the Python layers: a world of ``size`` ranks that all hold what this process holds.

It works on addresses like the real one, and does the work of an operation only when somebody waits for it, so
a test sees whether a result was read too early.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from horovod import _core
from horovod.errors import from_core

_NUMPY = {
    _core.UINT8: np.uint8,
    _core.INT8: np.int8,
    _core.UINT16: np.uint16,
    _core.INT16: np.int16,
    _core.INT32: np.int32,
    _core.INT64: np.int64,
    _core.FLOAT16: np.float16,
    _core.FLOAT32: np.float32,
    _core.FLOAT64: np.float64,
    _core.BOOL: np.bool_,
}


def view(address: int, dtype: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The memory of a tensor."""
    kind = np.dtype(_NUMPY[dtype])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, kind)
    memory: Any = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, kind).reshape(shape)


def _addresses(owners: Any) -> Iterator[int]:
    """Of the tensors in ``owners``, a tensor, an array, or a nest of tuples of them."""
    if isinstance(owners, tuple):
        for owner in owners:
            yield from _addresses(owner)
    elif isinstance(owners, torch.Tensor):
        yield owners.data_ptr()
    elif owners is not None:
        yield owners.ctypes.data


@dataclass
class Submission:
    kind: int
    name: str | None
    tensors: list[Any]
    grouped: bool
    op: int
    prescale: float
    postscale: float
    root: int
    process_set: int
    mode: int

    @property
    def data(self) -> list[int]:
        return [tensor[0] for tensor in self.tensors]

    @property
    def out(self) -> list[int]:
        return [tensor[1] for tensor in self.tensors]

    @property
    def dtypes(self) -> list[int]:
        return [tensor[2] for tensor in self.tensors]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(tensor[3]) for tensor in self.tensors]

    @property
    def splits(self) -> tuple[int, ...]:
        return tuple(self.tensors[0][7]) if len(self.tensors[0]) == 9 else ()

    @property
    def absent(self) -> list[int]:
        """Places of the tensors of which this rank, and so every rank, brings nothing."""
        reduced = self.kind == _core.ALLREDUCE
        return [
            i
            for i, (data, out) in enumerate(zip(self.data, self.out, strict=True))
            if reduced and out and not data
        ]

    @property
    def received(self) -> int:
        return self.tensors[0][8] if self.tensors and len(self.tensors[0]) == 9 else 0


@dataclass
class FakeEngine:
    size: int = 1
    failing: set[str] = field(default_factory=set)
    """Names whose operation fails when it is waited for."""
    log: list[Submission] = field(default_factory=list)
    pending: dict[int, Submission] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    """Handle -> the number that its operation ends with (join, changes of process sets)."""
    sets: dict[int, list[int]] = field(default_factory=dict)
    count: int = 0
    on_device: bool = False
    """Results that the engine allocates are said to be on a device."""
    shared_left: int = 0
    """Tensors for which there is shared memory."""

    def __post_init__(self) -> None:
        self.sets.setdefault(0, list(range(self.size)))

    def empty(self, dtype: int, shape: tuple[int, ...], shared: bool = False) -> object:
        if shared:
            if not self.shared_left:
                raise MemoryError
            self.shared_left -= 1
        return torch.from_numpy(np.empty(shape, _NUMPY[dtype])).__dlpack__()

    def submit(
        self,
        kind: int,
        name: str | None,
        tensors: _core.Tensor | list[_core.Tensor] | None,
        op: int,
        prescale: float,
        postscale: float,
        root: int,
        process_set: int,
        mode: int,
        owners: object = None,
    ) -> Any:
        if kind == _core.JOIN:
            return self._end_with(self.size - 1)
        grouped = isinstance(tensors, list)
        given: list[Any] = tensors if isinstance(tensors, list) else [] if tensors is None else [tensors]
        handle = self._add(
            Submission(kind, name, given, grouped, op, prescale, postscale, root, process_set, mode), owners
        )
        if mode != _core.BLOCKING or (self.on_device and not all(tensor[1] for tensor in given)):
            return handle
        return self.wait(handle) or 0

    def add_process_set(self, ranks: list[int]) -> int:
        number = next(n for n in range(1, len(self.sets) + 1) if n not in self.sets)
        self.sets[number] = list(ranks)
        return self._end_with(number)

    def remove_process_set(self, process_set: int) -> int:
        del self.sets[process_set]
        return self._end_with(process_set)

    def process_sets(self) -> dict[int, list[int]]:
        return {number: list(ranks) for number, ranks in self.sets.items()}

    def _end_with(self, number: int) -> int:
        self.count += 1
        self.numbers[self.count] = number
        return self.count

    def _add(self, submission: Submission, owners: object) -> int:
        self.count += 1
        told = {address for address in (*submission.data, *submission.out, submission.received) if address}
        unowned = told - set(_addresses(owners))
        assert not unowned, f"{submission.name}: {len(unowned)} of {len(told)} addresses belong to no owner"
        if submission.process_set not in self.sets:
            raise from_core("invalid_argument", "The process set does not exist, or has not been registered")
        if 0 not in self.sets[submission.process_set]:
            raise from_core("invalid_argument", "Rank 0 is not a member of the provided process set")
        key = (submission.kind, submission.name, submission.process_set)
        if submission.name is not None and any(
            key == (other.kind, other.name, other.process_set) for other in self.pending.values()
        ):
            raise from_core("duplicate", f"{submission.name} has the same name as another tensor in flight")
        self.log.append(submission)
        self.pending[self.count] = submission
        return self.count

    def poll(self, handle: int) -> bool:
        if handle not in self.pending and handle not in self.numbers:
            raise from_core("invalid_argument", f"Handle {handle} was not created or has been cleared.")
        return True

    def wait(self, handle: int, stream_of: Any = None) -> list[object] | int | None:
        if handle in self.numbers:
            return self.numbers.pop(handle)
        submission = self.pending.pop(handle)
        if submission.name in self.failing:
            raise from_core("peer_lost", f"{submission.name} failed", rank=1)
        if submission.kind == _core.ALLGATHER:
            return [self._gather(submission, i) for i in range(len(submission.data))]
        if submission.kind == _core.ALLTOALL:
            return [self._alltoall(submission)]
        members = len(self.sets[submission.process_set])
        for data, out, dtype, shape in zip(
            submission.data, submission.out, submission.dtypes, submission.shapes, strict=True
        ):
            if submission.kind == _core.ALLREDUCE and not data:
                continue
            if submission.kind == _core.ALLREDUCE or (
                submission.kind == _core.REDUCE and submission.root == 0
            ):
                values = view(data, dtype, shape) * submission.prescale
                if submission.op == _core.SUM:
                    values = values * members
                view(out, dtype, shape)[...] = values * submission.postscale
            elif submission.kind == _core.REDUCESCATTER:
                # This process is the first member: its rows are the first ones.
                rows = shape[0] // members + (shape[0] % members > 0)
                values = view(data, dtype, shape)[:rows] * submission.prescale
                if submission.op == _core.SUM:
                    values = values * members
                view(out, dtype, (rows, *shape[1:]))[...] = values * submission.postscale
            elif submission.kind in (_core.BROADCAST, _core.REDUCE):
                view(out, dtype, shape)[...] = view(data, dtype, shape)
        return None

    def wait_all(self, handles: list[int], stream_of: Any = None) -> list[tuple[int, int]]:
        first: Exception | None = None
        absent: list[tuple[int, int]] = []
        for handle in handles:
            if handle in self.pending:
                absent += [(handle, place) for place in self.pending[handle].absent]
            try:
                self.wait(handle)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        return absent

    def _gather(self, submission: Submission, i: int) -> object:
        one = view(submission.data[i], submission.dtypes[i], submission.shapes[i])
        members = len(self.sets[submission.process_set])
        return torch.from_numpy(np.concatenate([one] * members)).__dlpack__()

    def _alltoall(self, submission: Submission) -> object:
        """Everybody sends this process, the first member, the rows that it sends itself."""
        members = len(self.sets[submission.process_set])
        rows = submission.shapes[0][0]
        mine = submission.splits[0] if submission.splits else rows // members
        if submission.received:
            view(submission.received, _core.INT32, (members,))[...] = mine
        own = view(submission.data[0], submission.dtypes[0], submission.shapes[0])[:mine]
        return torch.from_numpy(np.concatenate([own] * members)).__dlpack__()

    @property
    def names(self) -> list[str | None]:
        return [submission.name for submission in self.log]
