"""The contract between a launcher and a system that starts tasks for it, such as Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Card", "TaskSource"]


@dataclass(frozen=True)
class Card:
    """By what a task finds its job. It holds the key: it goes only where the system shows it to nobody.

    Attributes:
        places: of the job's store, as `StoreClient` takes them.
        job: its name.
        start_s: how long a task may take to reach the store.
        logged: streams of ranks that are written to the log of the task.
        without: variables of the task's environment that its ranks do not have.
    """

    places: tuple[tuple[str, int], ...]
    key: bytes = field(repr=False)
    job: str
    start_s: float
    logged: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class TaskSource(Protocol):
    """Starts tasks, each of which does what `work` (`task`) does. For one job only."""

    name: str
    """Of the system, in messages."""
    store_hosts: Sequence[str]
    """Addresses at which the store is served, so that the tasks reach it."""
    reached_at: Sequence[str]
    """Further names of this machine by which they may: those of a router."""
    logged: Sequence[str]
    """See `Card`."""
    without: Sequence[str]
    """See `Card`."""
    own_gpus: bool
    """Ranks see the GPUs of their host that the system has given to this job, and no others."""
    executable: str
    """Python for the ranks; empty: that of the task."""

    def begin(self, card: Card, call: Sequence[memoryview], ended: Callable[[str], None]) -> None:
        """Start the tasks. `call`: what ranks read, see `WorkerPlan.call`. Does not wait for them.

        Args:
            ended: is called once, from any thread, when no task runs any more or will, with the reason if
                that is an error.

        Raises:
            LaunchError: there is no room for them, or none can be started.
        """

    def discovered(self, hosts: Mapping[str, int]) -> None:
        """Of an elastic job: these are the tasks that are there now, as slots by host."""

    def shortage(self, came: int) -> str:
        """Why only so many tasks came in time, as far as it is known: the end of a message."""

    def diagnosis(self) -> str:
        """Words of the system about the last of its tasks that failed; empty if there are none."""

    def cancel(self, why: str) -> None:
        """End all tasks, as their job has failed. Idempotent."""

    def close(self) -> None:
        """Wait for the end of all tasks, which have been told that the job is over; within a limit."""
