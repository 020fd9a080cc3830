"""The figures of one operation and size, in the field's definitions, and the machine that they depend on.

*Algorithm bandwidth* is size over time. *Bus bandwidth* multiplies it by what an ideal algorithm moves over
each rank's link for each byte of the size, so it can be compared between collectives, numbers of ranks, and
with what the hardware does.

Source: the performance notes of NVIDIA's nccl-tests.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from horovod.bench.operations import BUS_FACTORS, OPERATIONS
from horovod.bootstrap.place.control_groups import PROC
from horovod.bootstrap.place.proc import value_of

__all__ = [
    "CALM_CPUS",
    "LIMIT",
    "OWN",
    "Result",
    "Timing",
    "algorithm_bandwidth",
    "bus_factor",
    "machine",
    "versions",
]

CALM_CPUS = 0.35  # a figure is disturbed if other programs used more meanwhile
OWN = "farandole"
LIMIT = "limit"


def machine() -> dict[str, str]:
    """Processors, memory and system, in words."""
    cpu = value_of("model name", PROC / "cpuinfo") or platform.machine()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{os.cpu_count()} x {cpu}",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions(distributions: Iterable[str] = ("farandole", "torch")) -> dict[str, str]:
    """Of Python and of those ``distributions`` that are installed."""
    found = {"python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass  # a source tree, or a library that this run does not need
    return found


@dataclass(frozen=True)
class Timing:
    """Seconds per call; a call's time is that of its slowest rank."""

    median_s: float
    p99_s: float
    min_s: float
    calls: int
    others_cpus: float  # CPUs that other programs used meanwhile

    def per(self, operations: int) -> Timing:
        """The figures per operation, if each call consists of so many operations."""
        each = (self.median_s / operations, self.p99_s / operations, self.min_s / operations)
        return Timing(*each, self.calls, self.others_cpus)


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


@dataclass(frozen=True)
class Result:
    """Measurements of one operation, of every library in every round.

    Attributes:
        op: the reduction, "" where nothing is reduced.
        size_bytes: of one operation: the inputs' bytes, for allgather those of the whole output.
        count: elements of a rank's input.
        asynchronous: operations in flight together; 0 if they were blocking. Times are per operation.
        path: the data path that carried the bytes.
        timings: name of the library (``OWN``, ``LIMIT``, ...) to its rounds; all have the same number of
            rounds, and rounds of one number were measured one after another.
    """

    operation: str
    dtype: str
    op: str
    size_bytes: int
    count: int
    ranks: int
    asynchronous: int
    path: str
    timings: Mapping[str, Sequence[Timing]]

    def median_s(self, library: str = OWN) -> float:
        """Seconds per operation: the median over rounds of their medians."""
        return statistics.median(timing.median_s for timing in self.timings[library])

    def p99_s(self, library: str = OWN) -> float:
        """The median over rounds of their 99th percentiles."""
        return statistics.median(timing.p99_s for timing in self.timings[library])

    def algbw_gb_s(self, library: str = OWN) -> float:
        return algorithm_bandwidth(self.size_bytes, self.median_s(library))

    def busbw_gb_s(self, library: str = OWN) -> float:
        return self.algbw_gb_s(library) * bus_factor(self.operation, self.ranks)

    def ratios(self, library: str) -> list[float]:
        """By round, how many times longer ``library`` took than this library."""
        pairs = zip(self.timings[library], self.timings[OWN], strict=True)
        return [other.median_s / own.median_s for other, own in pairs]

    def ratio(self, library: str) -> float:
        """The median of :meth:`ratios`: the machine may change between rounds, less so within one."""
        return statistics.median(self.ratios(library))

    def share_of_limit(self) -> float | None:
        """Of the speed at which all ranks pass over as many bytes in place; None where there are none."""
        return self.ratio(LIMIT) if LIMIT in self.timings else None

    def as_json(self) -> dict[str, Any]:
        fields: Sequence[tuple[str, Callable[[str], float]]] = (
            ("median_s", self.median_s),
            ("p99_s", self.p99_s),
            ("algbw_gb_s", self.algbw_gb_s),
            ("busbw_gb_s", self.busbw_gb_s),
        )
        libraries = {}
        for library, timings in self.timings.items():
            ratios = self.ratios(library)
            libraries[library] = {
                **{name: figure(library) for name, figure in fields},
                "ratio": {"median": self.ratio(library), "low": min(ratios), "high": max(ratios)},
                "rounds": [dataclasses.asdict(timing) for timing in timings],
            }
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "op": self.op,
            "bytes": self.size_bytes,
            "count": self.count,
            "asynchronous": self.asynchronous,
            "path": self.path,
            "share_of_limit": self.share_of_limit(),
            "libraries": libraries,
        }
