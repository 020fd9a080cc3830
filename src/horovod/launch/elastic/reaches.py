"""The connections to the hosts of an elastic job: which are there, and when the others are tried again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.launch.driver.actions import Drop, Reach
from horovod.launch.elastic.workers import Workers

__all__ = ["Reaches"]

_RETRY_S = (2.0, 60.0)
"""A host that cannot be reached is tried again: the first pause, which doubles, and the longest one."""


@dataclass
class _Reach:
    reached: bool = False
    tries: int = 0
    again_at: float = -math.inf
    trying: bool = False
    told: str = ""


class Reaches:
    """
    Args:
        workers: what is to be done goes to their actions.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._hosts = workers.hosts
        self._reaches: dict[str, _Reach] = {}

    def connect(self, now: float) -> None:
        """Reach the hosts that are wanted, and drop those that are not."""
        for host in self._hosts.names:
            reach = self._reaches.setdefault(host, _Reach())
            if not (reach.reached or reach.trying) and now >= reach.again_at:
                reach.trying = True
                self._workers.actions.append(Reach(host))
        for host in [host for host in self._reaches if host not in self._hosts.names]:
            here = [worker.host for worker in self._workers.living()]
            here += [slot[0] for slot in self._workers.lingering.values()]
            if host not in here:
                del self._reaches[host]
                self._workers.actions.append(Drop(host))

    def begin_again(self, agents: Sequence[str]) -> list[str]:
        """Another driver goes on: returns the hosts that workers or ``agents`` are on. They are being reached
        from now on; all others are as if nobody knew them.
        """
        hosts = [*agents, *(worker.host for worker in self._workers.living())]
        hosts += [host for host, _ in self._workers.lingering.values()]
        self._reaches = {host: _Reach(trying=True) for host in hosts}
        return list(self._reaches)

    def reached(self, host: str) -> None:
        """Workers can be started there."""
        reach = self._reaches.setdefault(host, _Reach())
        reach.reached, reach.trying, reach.tries = True, False, 0

    def lost(self, host: str, why: str, now: float) -> None:
        """Note that a host cannot be reached, or that its connection has ended. Each reason is told once."""
        reach = self._reaches.setdefault(host, _Reach())
        was_reached = reach.reached
        reach.reached, reach.trying = False, False
        reach.tries += 1
        first_s, longest_s = _RETRY_S
        reach.again_at = now + min(longest_s, first_s * 2 ** min(reach.tries - 1, 10))
        if was_reached or why != reach.told:
            what = "was lost" if was_reached else "cannot be reached"
            self._workers.log("host_lost", f"host {host} {what}: {why}", host=host, why=why)
        reach.told = why

    def is_reached(self, host: str) -> bool:
        reach = self._reaches.get(host)
        return reach is not None and reach.reached

    def any_tried(self) -> bool:
        """True while a host that may be used is being reached."""
        return any(self._reaches[host].trying for host in self._hosts.names)

    def free_slots(self) -> list[tuple[str, int]]:
        """Slots where a worker can be started, in the order of ranks."""
        taken = {(worker.host, worker.index) for worker in self._workers.living()}
        taken |= {*self._workers.lingering.values()}
        return [
            (host, index)
            for host in self._hosts.names
            if self.is_reached(host)
            for index in self._hosts.slots(host)
            if (host, index) not in taken
        ]

    def missing(self) -> list[str]:
        """A sentence about each host that may be used and is not reached."""
        return [
            f"Host {host} is being reached{f': {reach.told}' if reach.told else ''}".removesuffix(".") + "."
            for host in self._hosts.names
            if (reach := self._reaches.get(host)) is not None and not reach.reached
        ]

    def due(self) -> float:
        """When `connect` has something to do."""
        return min(
            (
                reach.again_at
                for host in self._hosts.names
                if (reach := self._reaches.get(host)) is not None and not (reach.reached or reach.trying)
            ),
            default=math.inf,
        )
