"""Bandwidths of collectives, in the field's definitions.

*Algorithm bandwidth* is size over time. *Bus bandwidth* multiplies it by what an ideal algorithm moves over
each rank's link for each byte of the size, so it can be compared between collectives, numbers of ranks, and
with what the hardware does.

Source: the performance notes of NVIDIA's nccl-tests.
"""

from __future__ import annotations

from horovod.bench.operations import BUS_FACTORS, OPERATIONS

__all__ = ["algorithm_bandwidth", "bus_factor"]


def bus_factor(operation: str, ranks: int) -> float:
    """Bytes over a rank's link per byte of the size.

    The size is the input's, for allgather the whole output's.

    Raises:
        ValueError: no such operation.
    """
    if operation in OPERATIONS:
        return BUS_FACTORS[OPERATIONS[operation].bus](ranks)
    raise ValueError(f"{operation!r} is no operation: choose from {', '.join(OPERATIONS)}")


def algorithm_bandwidth(size_bytes: int, time_s: float) -> float:
    """GB/s, of 10^9 bytes; 0 where no time was measured."""
    return size_bytes / time_s / 1e9 if time_s > 0 else 0.0
