"""The hosts of an elastic job: their order, and which of them are left out for a while.

A host that has failed is *blacklisted*: it is not used, though discovery goes on to name it. With a range of
seconds (LO, HI) it comes back after its n-th failure when ``min(HI, LO * 2**n + U(0, 1) * LO)`` seconds have
passed, without one never. A host or slot that was announced to go is *drained*: it has not failed, and comes
back when discovery names the host again after it had not, or after some minutes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.bootstrap.store.membership import HostUpdateResult
from horovod.errors import InvalidArgumentError

__all__ = ["COOLDOWN_MOST_S", "Hosts", "checked_cooldown", "in_stable_order", "named"]

COOLDOWN_MOST_S = 3600.0
DRAINED_S = 300.0
"""Machines that are announced to go are gone by then, or have come back."""

_MOST_DOUBLINGS = 12  # 2**12 seconds are more than the longest range


def checked_cooldown(cooldown_s: Sequence[float] | None) -> tuple[float, float] | None:
    """The range as two numbers.

    Raises:
        ValueError: it is none from 1 to 3600 seconds.
    """
    if cooldown_s is None:
        return None
    try:
        low_s, high_s = (float(each) for each in cooldown_s)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"The cool-down range must be two numbers of seconds, got {cooldown_s!r}."
        ) from None
    if not 1 <= low_s <= high_s <= COOLDOWN_MOST_S:
        raise InvalidArgumentError(
            f"The cool-down range {low_s:g} to {high_s:g} s must lie within 1 to {COOLDOWN_MOST_S:g} s."
        )
    return low_s, high_s


def in_stable_order(available: Mapping[str, int], before: Sequence[str]) -> list[str]:
    """The names of ``available``: those that were there ``before`` in that order, then the new ones."""
    kept = [name for name in before if name in available]
    return kept + [name for name in available if name not in kept]


class Hosts:
    """Hosts that may be used, and the slots of each.

    Args:
        cooldown_s: see the module.
        uniform: random numbers of [0, 1); tests replace them.
    """

    def __init__(
        self, cooldown_s: tuple[float, float] | None = None, uniform: Callable[[], float] = random.random
    ) -> None:
        self._cooldown_s = cooldown_s
        self.uniform = uniform
        self._discovered: dict[str, int] = {}
        self._order: list[str] = []
        self._out_until: dict[str, float] = {}
        self._slots_out_until: dict[tuple[str, int], float] = {}
        self._drained_until: dict[tuple[str, int], float] = {}
        self._failures: dict[str | tuple[str, int], int] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "uniform": None}  # where chance comes from is no part of the state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, uniform=random.random)

    @property
    def names(self) -> tuple[str, ...]:
        """All that may be used now, in the order in which ranks are dealt."""
        return tuple(name for name in self._order if name not in self._out_until)

    @property
    def blacklisted(self) -> Mapping[str, float]:
        """When each host that is left out comes back (``math.inf``: never), on the clock of the caller."""
        return dict(self._out_until)

    @property
    def slots_left_out(self) -> Mapping[tuple[str, int], float]:
        """When each slot that has failed on a host that is used comes back, as of `blacklisted`."""
        return self._listed(self._slots_out_until)

    @property
    def slots_drained(self) -> Mapping[tuple[str, int], float]:
        """The same of slots that were announced to go."""
        return self._listed(self._drained_until)

    @property
    def discovered(self) -> Mapping[str, int]:
        """Hosts and slots that discovery has found last, including hosts that are left out."""
        return dict(self._discovered)

    def slots(self, name: str) -> list[int]:
        """The local indices that may be used on a host; none if it is not there or left out."""
        if name in self._out_until:
            return []
        count = self._discovered.get(name, 0)
        out = self._slots_out_until.keys() | self._drained_until.keys()
        return [index for index in range(count) if (name, index) not in out]

    def total(self) -> int:
        """Of all hosts that may be used."""
        return sum(len(self.slots(name)) for name in self.names)

    def update(self, found: Mapping[str, int]) -> HostUpdateResult:
        """Discovery has found these hosts with so many slots.

        Returns:
            How that differs from before, without the hosts that are left out.
        """
        before = {name: self._discovered[name] for name in self.names}
        self._order = in_stable_order(found, self._order)
        self._discovered = dict(found)
        for slot in [slot for slot in self._drained_until if slot[0] not in found]:
            del self._drained_until[slot]
        after = {name: found[name] for name in self.names}
        result = HostUpdateResult.no_update
        for name in {**before, **after}:
            if after.get(name, 0) < before.get(name, 0):
                result |= HostUpdateResult.removed
            elif after.get(name, 0) > before.get(name, 0):
                result |= HostUpdateResult.added
        return result

    def is_blacklisted(self, name: str) -> bool:
        """True while the host is left out."""
        return name in self._out_until

    def blacklist(self, name: str, now: float) -> float:
        """Leave a host out. A failure while it is left out does not make that longer.

        Returns:
            When it comes back; ``math.inf``: never.
        """
        if name not in self._out_until:
            self._out_until[name] = now + self._delay_s(name)
        return self._out_until[name]

    def has_failed(self, name: str, index: int) -> bool:
        """True while a host, or its slot, is left out for a failure."""
        return name in self._out_until or (name, index) in self._slots_out_until

    def is_drained(self, name: str, index: int) -> bool:
        """True while a slot counts as drained: it was announced to go."""
        return (name, index) in self._drained_until

    def drain(self, name: str, indices: Sequence[int], now: float) -> None:
        """These slots of a host will go."""
        for index in indices:
            self._drained_until.setdefault((name, index), now + DRAINED_S)

    def leave_out(self, name: str, index: int, now: float) -> float:
        """Leave one slot of a host out; returns as `blacklist`."""
        slot = (name, index)
        if slot not in self._slots_out_until:
            self._slots_out_until[slot] = now + self._delay_s(slot)
        return self._slots_out_until[slot]

    def readmit(self, now: float) -> list[str]:
        """End what is over; returns the hosts that are used again and that discovery still names."""
        back = [name for name, until in self._out_until.items() if until <= now]
        for name in back:
            del self._out_until[name]
            if name in self._order:  # it comes back as a new one: rank 0 stays with those that were there
                self._order.remove(name)
                self._order.append(name)
        slots = []
        for out_until in (self._slots_out_until, self._drained_until):
            over = [slot for slot, until in out_until.items() if until <= now]
            slots += over
            for slot in over:
                del out_until[slot]
        names = dict.fromkeys([*back, *(host for host, _ in slots)])
        return [name for name in names if name in self._order and name not in self._out_until]

    def next_readmission(self) -> float:
        """When `readmit` has something to do; ``math.inf``: never."""
        out_until = (self._out_until, self._slots_out_until, self._drained_until)
        return min((until for each in out_until for until in each.values()), default=math.inf)

    def _listed(self, out_until: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
        """Without slots that there are not, and hosts that are left out as a whole."""
        return {
            (name, index): until
            for (name, index), until in sorted(out_until.items())
            if index < self._discovered.get(name, 0) and name not in self._out_until
        }

    def _delay_s(self, what: str | tuple[str, int]) -> float:
        if self._cooldown_s is None:
            return math.inf
        low_s, high_s = self._cooldown_s
        failures = self._failures[what] = self._failures.get(what, 0) + 1
        grown_s: float = low_s * 2.0 ** min(failures, _MOST_DOUBLINGS) + self.uniform() * low_s
        return max(low_s, min(high_s, grown_s))


def named(hosts: Mapping[str, int]) -> str:
    """Hosts and their slots: ``a:2,b:1``."""
    return ",".join(f"{name}:{slots}" for name, slots in hosts.items()) or "none"
