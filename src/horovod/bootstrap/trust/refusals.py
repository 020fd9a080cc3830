"""Count of the strangers that were turned away, logged in a line now and then: never one for each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Refusals"]

_log = logging.getLogger("horovod.bootstrap")

_QUIET_S = 30.0
"""Between two lines."""


class Refusals:
    """Counts those that were turned away by ``who``, and says so at the first one, then every 30 s at most.

    Args:
        who: for the message, with a capital: ``Rank 3 on host b``.
        clock: seconds that only grow.
    """

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._who = who
        self._clock = clock
        self._told = 0
        self._last = ""
        self._quiet_until = 0.0

    def add(self, where: str, reason: str) -> None:
        """One more, from ``where``."""
        self.count += 1
        self._last = f"{where}: {reason}"
        if self._clock() >= self._quiet_until:
            self.tell()

    def tell(self) -> None:
        """Say how many came since the last line, if any did."""
        new = self.count - self._told
        if new == 0:
            return
        self._told = self.count
        self._quiet_until = self._clock() + _QUIET_S
        strangers = "a stranger" if new == 1 else f"{new} strangers"
        last = self._last if new == 1 else f"the last from {self._last}"
        _log.warning(
            "%s turned %s away (%s). Somebody tries its ports, or a rank has another key.",
            self._who,
            strangers,
            last,
        )
