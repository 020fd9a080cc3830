"""Join of ``horovod.tensorflow``."""

from __future__ import annotations

from typing import Any

from horovod.tensorflow.native import ops

__all__ = ["join"]


def join() -> Any:
    """This rank has no more data: wait until every rank has joined. An int32 scalar, the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros; averages divide by all ranks. All
    other collectives of the global set fail for the others.
    """
    return ops.horovod_join()
