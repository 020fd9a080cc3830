"""An engine for tests of the Python layers: a world of ``size`` ranks that all hold what this process holds.

It works on addresses like the real one, and does the work of an operation only when somebody waits for it, so
a test sees whether a result was read too early.
"""

from __future__ import annotations

import ctypes
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


@dataclass
class Submission:
    kind: int
    name: str | None
    data: list[int]
    out: list[int]
    dtypes: list[int]
    shapes: list[tuple[int, ...]]
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    waited: bool = False
    grouped: bool = False


@dataclass
class FakeEngine:
    size: int = 1
    failing: set[str] = field(default_factory=set)
    """Names whose operation fails when it is waited for."""
    log: list[Submission] = field(default_factory=list)
    pending: dict[int, Submission] = field(default_factory=dict)
    count: int = 0

    def submit(
        self,
        kind: int,
        name: str | None,
        data: int,
        out: int,
        dtype: int,
        shape: tuple[int, ...],
        op: int,
        prescale: float,
        postscale: float,
        root: int,
        process_set: int,
        waited: bool,
    ) -> int:
        return self._add(
            Submission(
                kind, name, [data], [out], [dtype], [tuple(shape)], op, prescale, postscale, root, waited
            )
        )

    def submit_group(
        self,
        kind: int,
        name: str | None,
        data: list[int],
        out: list[int],
        dtypes: list[int],
        shapes: list[tuple[int, ...]],
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        waited: bool,
    ) -> int:
        shapes = [tuple(shape) for shape in shapes]
        return self._add(
            Submission(kind, name, data, out, dtypes, shapes, op, prescale, postscale, 0, waited, True)
        )

    def _add(self, submission: Submission) -> int:
        self.count += 1
        key = (submission.kind, submission.name)
        if submission.name is not None and any(
            key == (other.kind, other.name) for other in self.pending.values()
        ):
            raise from_core("duplicate", f"{submission.name} has the same name as another tensor in flight")
        self.log.append(submission)
        self.pending[self.count] = submission
        return self.count

    def poll(self, handle: int) -> bool:
        assert handle in self.pending
        return True

    def wait(self, handle: int) -> list[object] | None:
        submission = self.pending.pop(handle)
        if submission.name in self.failing:
            raise from_core("peer_lost", f"{submission.name} failed", rank=1)
        if submission.kind == _core.ALLGATHER:
            return [self._gather(submission, i) for i in range(len(submission.data))]
        for data, out, dtype, shape in zip(
            submission.data, submission.out, submission.dtypes, submission.shapes, strict=True
        ):
            if submission.kind == _core.ALLREDUCE:
                values = view(data, dtype, shape) * submission.prescale
                if submission.op == _core.SUM:
                    values = values * self.size
                view(out, dtype, shape)[...] = values * submission.postscale
            elif submission.kind == _core.BROADCAST:
                view(out, dtype, shape)[...] = view(data, dtype, shape)
        return None

    def wait_all(self, handles: list[int]) -> None:
        first: Exception | None = None
        for handle in handles:
            try:
                self.wait(handle)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def _gather(self, submission: Submission, i: int) -> object:
        one = view(submission.data[i], submission.dtypes[i], submission.shapes[i])
        return torch.from_numpy(np.concatenate([one] * self.size)).__dlpack__()

    @property
    def names(self) -> list[str | None]:
        return [submission.name for submission in self.log]
