"""Groups of ranks that share memory, and the rank that each one reports to: pure functions, equal on every
rank.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

__all__ = ["CONTROL_FANOUT", "Machine", "candidate_groups", "control_edges", "control_parent", "split"]

CONTROL_FANOUT = 32
"""Up to this many groups report to rank 0 directly; beyond, leaders form a tree of this fan-out."""


@dataclass(frozen=True)
class Machine:
    """Machine that a process runs on. Processes can pass descriptors to each other if they agree in all
    attributes.

    Attributes:
        boot_id: of the running kernel.
        net_namespace: inode; abstract Unix sockets belong to the network namespace.
        uid: a process of another user may not be trusted with memory.
        host: the launcher's name for the host.
        mode: the rank's ``HOROVOD_TRANSPORT_GROUPS``.
    """

    boot_id: str
    net_namespace: int
    uid: int
    host: str
    mode: str


def candidate_groups(machines: Sequence[Machine]) -> list[list[int]]:
    """Partition the ranks (``machines`` by rank) into those who may be able to share memory.

    Returns:
        Groups, each ascending, ordered by their first rank; every rank is in exactly one.
    """
    groups: dict[Hashable, list[int]] = {}
    for rank, machine in enumerate(machines):
        where: Hashable = (machine.boot_id, machine.net_namespace, machine.uid, machine.mode)
        if machine.mode == "single":
            where = rank
        elif machine.mode == "launcher":
            where = (where, machine.host)
        groups.setdefault(where, []).append(rank)
    return list(groups.values())


def split(groups: Sequence[Sequence[int]], failed: Collection[int]) -> list[list[int]]:
    """Dissolve every group that has a member in ``failed`` into groups of one."""
    result: list[list[int]] = []
    for group in groups:
        broken = any(rank in failed for rank in group)
        result += [[rank] for rank in group] if broken else [list(group)]
    return sorted(result)


def control_parent(rank: int, groups: Sequence[Sequence[int]]) -> int | None:
    """The rank that ``rank`` reports to; None for rank 0, the root of the control tree.

    The first rank of a group is its leader; members report to it. Leaders report to rank 0, or to each other
    as a tree of ``CONTROL_FANOUT`` if there are more groups than that.
    """
    for index, group in enumerate(groups):
        if rank == group[0]:
            parent = _parent(index, len(groups))
            return None if parent is None else groups[parent][0]
        if rank in group:
            return group[0]
    raise ValueError(f"rank {rank} is in no group")


def control_edges(index: int, groups: Sequence[Sequence[int]]) -> tuple[int | None, list[int]]:
    """The leaders that the leader of group ``index`` has a connection with: its parent, and those that report
    to it. Looks at no others, as there may be thousands.
    """
    parent = _parent(index, len(groups))
    first = CONTROL_FANOUT * index + 1
    below = range(first, first + CONTROL_FANOUT)
    if len(groups) <= CONTROL_FANOUT:
        below = range(1 if index == 0 else len(groups), len(groups))
    children = [groups[child][0] for child in below if child < len(groups)]
    return None if parent is None else groups[parent][0], children


def _parent(index: int, count: int) -> int | None:
    if index == 0:
        return None
    return 0 if count <= CONTROL_FANOUT else (index - 1) // CONTROL_FANOUT
