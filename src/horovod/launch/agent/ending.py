"""The end of processes: a first signal, then SIGKILL to what is left."""

from __future__ import annotations

import signal
import time

from horovod.launch.agent.processes import signal_groups
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S

KILL_INTERVAL_S = 0.1  # SIGKILL is repeated: a process may have been forked while we looked
NEVER = float("inf")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod.bootstrap.place.proc import Stat


class Ending:
    """The end of some processes: a signal, then SIGKILL after the grace time, again and again until none is
    left, or until it is plain that nobody can end them.
    """

    def __init__(self) -> None:
        self.begun = False
        self.due = NEVER
        """When to kill what is left."""
        self._give_up_at = NEVER

    def begin(self, processes: Iterable[Stat], signum: int) -> None:
        """The first signal counts."""
        if not self.begun:
            self.begun = True
            self.due = time.monotonic() + GRACE_S
            signal_groups(processes, signum)

    def kill(self, processes: Iterable[Stat]) -> None:
        now = time.monotonic()
        self.begun = True
        self.due = now + KILL_INTERVAL_S
        self._give_up_at = min(self._give_up_at, now + GIVE_UP_S)
        signal_groups(processes, signal.SIGKILL)

    def given_up(self, now: float) -> bool:
        return now >= self._give_up_at
