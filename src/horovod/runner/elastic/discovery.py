"""Hosts of elastic jobs, for launchers of the user's own; :mod:`horovod.launch.elastic` does the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from horovod.common.elastic import HostUpdateResult
from horovod.launch.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.launch.elastic.hosts import Hosts, checked_cooldown, in_stable_order

__all__ = [
    "DiscoveredHosts",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostManager",
    "HostUpdateResult",
]


@dataclass(frozen=True)
class DiscoveredHosts:
    """The hosts that could be used at one moment: nothing changes it later.

    Attributes:
        host_slots: slots by host.
        host_assignment_order: the hosts, in the order in which ranks are dealt.
    """

    host_slots: Mapping[str, int]
    host_assignment_order: tuple[str, ...]

    @property
    def available_hosts(self) -> frozenset[str]:
        """The hosts."""
        return frozenset(self.host_slots)

    def get_slots(self, host: str) -> int:
        """Slots of a host; 0 if it is not there."""
        return self.host_slots.get(host, 0)

    def count_available_slots(self) -> int:
        """Slots of all hosts."""
        return sum(self.host_slots.values())


class HostManager:
    """Asks a discovery, and leaves out hosts that have failed.

    Args:
        discovery: says which hosts there are.
        cooldown_range: for how many seconds a failed host is left out, from and to; None: for ever.

    Raises:
        ValueError: the range is none from 1 to 3600 seconds.
    """

    def __init__(self, discovery: HostDiscovery, cooldown_range: tuple[float, float] | None = None) -> None:
        self._discovery = discovery
        self._lock = threading.Lock()
        self._hosts = Hosts(checked_cooldown(cooldown_range))  # guarded by _lock, as the events
        self._events: dict[str, threading.Event] = {}

    @property
    def current_hosts(self) -> DiscoveredHosts:
        """The hosts that may be used now."""
        with self._lock:
            slots = {name: len(self._hosts.slots(name)) for name in self._hosts.names}
            return DiscoveredHosts(MappingProxyType(slots), self._hosts.names)

    def update_available_hosts(self) -> HostUpdateResult:
        """Ask the discovery; returns how its answer differs from the last one. A host that was left out
        and is used again counts as added.

        Raises:
            Exception: what the discovery raises; the hosts stay what they were.
        """
        found = self._discovery.find_available_hosts_and_slots()
        with self._lock:
            back = self._hosts.readmit(time.monotonic())
            result = self._hosts.update(found)
            for name in back:
                self._events.pop(name, None)
                if name in found:
                    result |= HostUpdateResult.added
            return result

    def blacklist(self, host: str) -> None:
        """Leave a host out, and set its event. A failure while it is left out does not make that longer."""
        with self._lock:
            self._hosts.blacklist(host, time.monotonic())
            event = self._events.setdefault(host, threading.Event())
        event.set()

    def is_blacklisted(self, host: str) -> bool:
        """True while a host is left out."""
        with self._lock:
            return self._hosts.is_blacklisted(host)

    def get_host_event(self, host: str) -> threading.Event:
        """Set when the host is left out; another one when it is used again."""
        with self._lock:
            return self._events.setdefault(host, threading.Event())

    @staticmethod
    def order_available_hosts(
        available_hosts: Sequence[str], prev_host_assignment_order: Sequence[str]
    ) -> list[str]:
        """Hosts that were there before in their order, then the new ones."""
        return in_stable_order(dict.fromkeys(available_hosts, 0), prev_host_assignment_order)
