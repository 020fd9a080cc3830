"""Rank and size of this process, from the environment alone."""

from __future__ import annotations

import os

__all__ = ["get_env_rank_and_size"]

_FAMILIES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size that a launcher gave this process; (0, 1) without a launcher.

    Raises:
        RuntimeError: only one of a pair of variables is set, or one is not a number.
    """
    for rank_variable, size_variable in _FAMILIES:
        rank, size = os.environ.get(rank_variable), os.environ.get(size_variable)
        if rank is None and size is None:
            continue
        if rank is None or size is None:
            raise RuntimeError(f"Only one of {rank_variable} and {size_variable} is set: set both or none.")
        try:
            return int(rank), int(size)
        except ValueError:
            raise RuntimeError(f"{rank_variable}={rank!r}, {size_variable}={size!r}: not numbers.") from None
    return 0, 1
