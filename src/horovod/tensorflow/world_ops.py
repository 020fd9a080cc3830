"""Ops that ask about the world when a graph runs."""

from __future__ import annotations

from typing import Any

from horovod.tensorflow.native import ops

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Number of ranks of a process set when the op runs, an int32 scalar; -3 if there is no such set."""
    return ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set when the op runs, 0 if not, -3 if there is no such set."""
    return ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> Any:
    """Number of ranks on this host when the op runs, an int32 scalar."""
    return ops.horovod_local_size(name=name)


def rank_op(name: str | None = None) -> Any:
    """This rank when the op runs, an int32 scalar."""
    return ops.horovod_rank(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """This rank among those of its host when the op runs, an int32 scalar."""
    return ops.horovod_local_rank(name=name)
