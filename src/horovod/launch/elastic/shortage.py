"""Shortage of slots: how long an elastic job waits for them, and its messages meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from horovod.launch.elastic.hosts import named
from horovod.launch.elastic.reaches import Reaches
from horovod.launch.elastic.workers import Workers
from horovod.launch.phrases import counted
from horovod.wordings import RANKS_FAILED

__all__ = ["ONCE", "Shortage"]

ONCE = "it counts once it was listed twice in a row"
"""Said of hosts in lists that flap."""


class Shortage:
    """
    Args:
        workers: of the job.
        reaches: say which hosts are there.
        now: slots are waited for from now on.

    Attributes:
        until: when that has taken too long.
        hosts_known: discovery has found hosts, or that there are none.
    """

    def __init__(self, workers: Workers, reaches: Reaches, now: float) -> None:
        self._workers = workers
        self._rules = workers.rules
        self._hosts = workers.hosts
        self._reaches = reaches
        self.until = now
        self.hosts_known = False
        self._passing: dict[str, int] = {}  # and how many slots of it counted
        self.wait_anew(now)

    def wait_anew(self, now: float) -> None:
        """Slots are waited for from now on."""
        self.until = now + self._rules.slots_wait_s

    def passed_by(self, found: Mapping[str, int], passing: Sequence[str]) -> list[str]:
        """Note hosts that were listed for a moment only, beside those that count; returns those of which it
        was not known.
        """
        for host in [host for host, slots in self._passing.items() if found.get(host, 0) > slots]:
            del self._passing[host]
        new = [host for host in passing if host not in self._passing]
        self._passing.update({host: found.get(host, 0) for host in new})
        return new

    def verdict(self, needed: int, now: float) -> str:
        """Why ``needed`` slots are waited for no longer; empty: they are."""
        in_vain = self._is_in_vain(needed)
        if now < self.until and not in_vain:
            return ""
        waited = "" if in_vain else f", for {self._rules.slots_wait_s:g} s (--elastic-timeout)"
        reasons = [f"{self.phrase(needed)}{waited}.", self.why(now)]
        if failure := self._workers.last_failure:
            reasons.append(f"The last failure: {failure}. {RANKS_FAILED}.")
        return "Timed out waiting for minimum number of slots to become available: " + " ".join(
            filter(None, reasons)
        )

    def phrase(self, needed: int) -> str:
        """Name the slots that are needed, and those that are there."""
        usable = {
            host: len(self._hosts.slots(host)) for host in self._hosts.names if self._reaches.is_reached(host)
        }
        return (
            f"{counted(needed, 'slot')} needed, {sum(usable.values())} there"
            f"{f' ({named(usable)})' if usable else ''}"
        )

    def why(self, now: float) -> str:
        """Known reasons why hosts are not there, in sentences."""
        reasons = [] if self.hosts_known else ["The hosts are not known yet."]
        reasons += self._reaches.missing()
        reasons += [f"Host {host} is listed off and on: {ONCE}." for host in self._passing]
        for host, until in self._hosts.blacklisted.items():
            if host in self._hosts.discovered:
                reasons.append(f"Host {host} has failed and is left out {_span(until, now)}.")
        reasons += _slots("has failed", self._hosts.slots_left_out, now)
        reasons += _slots("was announced to go", self._hosts.slots_drained, now)
        return " ".join(reasons)

    def _is_in_vain(self, needed: int) -> bool:
        """True if no further slot can come: the hosts are fixed, and those that are left out stay so."""
        return (
            self._rules.fixed_hosts
            and self._hosts.total() < needed
            and self._hosts.next_readmission() == math.inf
            and self.hosts_known
        )


def _slots(why: str, out_until: Mapping[tuple[str, int], float], now: float) -> list[str]:
    """A sentence for each slot that is left out."""
    return [
        f"Slot {index} of {host} {why} and is left out {_span(until, now)}."
        for (host, index), until in out_until.items()
    ]


def _span(until: float, now: float) -> str:
    return "for good" if until == math.inf else f"for {max(0.0, until - now):.0f} s more"
