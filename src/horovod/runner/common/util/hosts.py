"""Hosts and places of ranks, for launchers of the user's own; ``horovod.launch.placement`` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from horovod.launch.placement import hosts as placement

__all__ = [
    "INVALID_SLOT_INFO",
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]


@dataclass
class HostInfo:
    """A host, and how many ranks fit there."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read ``name:slots``.

        Raises:
            ValueError: it is not that.
        """
        found = parse_hosts(host_string)
        if len(found) != 1:
            raise ValueError(f"{host_string!r} names several hosts: parse_hosts reads them.")
        return found[0]


@dataclass
class SlotInfo:
    """The place of one rank. ``worker``: of an elastic job, the number of its process."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int | None = None
    local_size: int | None = None
    cross_size: int | None = None
    worker: int | None = field(default=None, compare=False)

    def to_response_string(self) -> str:
        """``rank,size,local_rank,local_size,cross_rank,cross_size``."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)
"""The place of a rank that has none any more."""


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read ``name:slots,name:slots``.

    Raises:
        ValueError: an entry is not that.
    """
    return [HostInfo(host.name, host.slots) for host in placement.parse_hosts(hosts_string)]


def parse_host_files(filename: str) -> str:
    """Read a host file (lines ``name slots=N``), and return its hosts as :func:`parse_hosts` takes them.

    Raises:
        ValueError: a line cannot be read.
        OSError: the file cannot.
    """
    return placement.named(placement.parse_hostfile(Path(filename).read_text(), str(filename)))


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Read ``name:slots,name:slots``: the names in their order, and the slots by name.

    Raises:
        ValueError: an entry is not that.
    """
    found = parse_hosts(hosts)
    return [host.hostname for host in found], {host.hostname: host.slots for host in found}


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Place ranks host by host, in the order of ``hosts``, until ``max_num_proc`` are placed (by default one
    for each slot).

    Returns:
        The places in the order of ranks.

    Raises:
        ValueError: the hosts have fewer than ``min_num_proc`` slots.
    """
    available = sum(host.slots for host in hosts)
    given = [placement.HostSlots(host.hostname, host.slots) for host in hosts]
    if available < min_num_proc:
        raise ValueError(
            f"Requested more processes ({min_num_proc}) than there are slots ({available}): "
            f"{placement.named(given)}."
        )
    slots = placement.assign_ranks(given, min_num_proc, max_num_proc)
    return [SlotInfo(**asdict(slot)) for slot in slots]
