"""Join of ``horovod.arrays``."""

from __future__ import annotations

from horovod.arrays.frontend import collectives

__all__ = ["join"]


def join(device: int = -1) -> int:
    """This rank has no more data: wait until every rank has joined, and return the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros: they count in averages, minima,
    maxima and products. All other operations of the global set fail for the others.

    Args:
        device: has no effect: those zeros are in host memory.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    return collectives.join()
