"""All ranks must move their bytes the same way."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.errors import ConfigError

__all__ = ["agree_on_operations"]


def agree_on_operations(said: Sequence[str]) -> None:
    """Compare ``HOROVOD_CPU_OPERATIONS`` of all ranks (``said`` by rank).

    Raises:
        ConfigError: two ranks differ; every rank gets the same text.
    """
    for rank, operations in enumerate(said):
        if operations != said[0]:
            raise ConfigError(
                f"The ranks disagree on what moves their bytes: HOROVOD_CPU_OPERATIONS is {said[0]} on rank "
                f"0 and {operations} on rank {rank}. Set it to the same on every rank.",
                variable="HOROVOD_CPU_OPERATIONS",
            )
