"""Cores of a machine for each of its ranks.

Also part of the agent's text (`horovod.launch.agent.bundle`): only the standard library, and Python 3.7.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from horovod.bootstrap.place.control_groups import GROUPS, PROC, control_groups
from horovod.bootstrap.place.proc import lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Share", "cores_per_rank", "fewest_cores_per_rank", "own_share", "usable_cores"]


@dataclass(frozen=True)
class Share:
    """Cores that a process may use.

    Attributes:
        cores: bit mask of the cores that it may run on, numbered by the machine.
        quota: cores' worth of time that its control groups allow; None: no limit.
    """

    cores: int
    quota: float | None


def own_share(proc: Path = PROC, groups: Path = GROUPS) -> Share:
    """The share of this process.

    Source: sched_getaffinity(2); kernel documentation, cgroup-v2, ``cpu.max``.
    """
    cores = sum(1 << core for core in os.sched_getaffinity(0))
    quotas = []
    for folder in control_groups(proc, groups):
        for line in lines(folder / "cpu.max"):
            quota, _, period = line.partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period) > 0:
                quotas.append(int(quota) / int(period))
    return Share(cores, min(quotas, default=None))


def usable_cores(proc: Path = PROC, groups: Path = GROUPS) -> tuple[int, bool]:
    """Cores that this process may run on, or fewer if its control groups allow less time than these have;
    then True besides.
    """
    share = own_share(proc, groups)
    cores = _count(share.cores)
    if share.quota is not None and share.quota < cores:
        return max(1, int(share.quota)), True
    return cores, False


def cores_per_rank(rank: int, shares: Sequence[Share], machines: Sequence[str]) -> float:
    """Cores for each of the ranks on the machine of ``rank``, itself included.

    Args:
        shares: by rank.
        machines: by rank, what all ranks of a machine have in common.
    """
    here = [share for share, machine in zip(shares, machines, strict=True) if machine == machines[rank]]
    return _for_each(here, shares[rank].quota)


def fewest_cores_per_rank(shares: Sequence[Share], machines: Sequence[str]) -> float:
    """:func:`cores_per_rank` of the rank with the fewest, of all machines."""
    by_machine = defaultdict(list)
    for share, machine in zip(shares, machines, strict=True):
        by_machine[machine].append(share)
    return min(
        _for_each(here, quota) for here in by_machine.values() for quota in {each.quota for each in here}
    )


def _for_each(here: Sequence[Share], quota: float | None) -> float:
    """Cores for each of the ranks of one machine, for those with this quota."""
    cores = 0
    for share in here:
        cores |= share.cores
    count = float(_count(cores))
    # Ranks with the same quota are taken to be in one container, which shares it.
    if quota is not None:
        count = min(count, quota * len(here) / sum(share.quota == quota for share in here))
    return count / len(here)


def _count(cores: int) -> int:
    return bin(cores).count("1")
