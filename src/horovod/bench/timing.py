"""The figures that timing a call gives."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CALM_CPUS", "Timing"]

CALM_CPUS = 0.35  # a figure is disturbed if other programs used more meanwhile


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
