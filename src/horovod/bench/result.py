"""The figures of one operation and size."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.bench.bandwidth import algorithm_bandwidth, bus_factor
from horovod.bench.timing import Timing

__all__ = ["LIMIT", "OWN", "Result"]

OWN = "farandole"
LIMIT = "limit"


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
