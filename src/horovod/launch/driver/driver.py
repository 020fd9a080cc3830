"""The driver of a job: events go in with the time, actions come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING

from horovod.launch.driver.actions import Action, Say
from horovod.launch.phrases import counted

if TYPE_CHECKING:
    from horovod.launch.contracts.events import Event

__all__ = ["Driver"]


class Driver(ABC):
    """Facts about a job, and a policy: what follows from them. Without clocks, sockets or threads, so that a
    test plays thousands of histories.

    Args:
        now: the time, in seconds, as all later ones.

    Attributes:
        actions: to be carried out, in order. Whoever does that takes the list away.
        hosts_of: host of each worker, as far as it is known.
        signum: the signal that has ended the job, 0 if none has.
        finished: nothing of the job runs any more.
    """

    def __init__(self, now: float) -> None:
        self.began_at = now
        self.actions: list[Action] = []
        self.hosts_of: dict[int, str] = {}
        self.signum = 0
        self.finished = False

    @abstractmethod
    def hear(self, event: Event, now: float) -> None:
        """Note what has happened."""

    @abstractmethod
    def interrupt(self, signum: int, now: float) -> None:
        """A signal to this process says that the job shall end."""

    @abstractmethod
    def settle(self, now: float) -> None:
        """Decide what follows from what has happened, and from the time."""

    @abstractmethod
    def due(self, now: float) -> float:
        """When to `settle` again; ``math.inf``: not before something else happens."""

    @property
    @abstractmethod
    def running(self) -> Collection[int]:
        """The workers that there are."""

    @property
    @abstractmethod
    def ending(self) -> bool:
        """Everything is being ended."""

    @property
    def reached(self) -> int:
        """Number of hosts that were reached, for people."""
        return 0

    @property
    def progress(self) -> tuple[int, int, bool]:
        """Numbers for people: workers that run, those that have ended, and whether the others follow."""
        return len(self.running), 0, self.ending

    def describe(self, now: float) -> str:
        """One line about what is under way, for people, in place of numbers; empty: these say it."""
        return ""

    def tell(self, text: str) -> None:
        """Tell the user."""
        self.actions.append(Say(text))

    def tell_of_interrupt(self, ranks: int) -> None:
        """Tell the user that Ctrl-C ends so many ranks."""
        what, it = (counted(ranks, "rank"), "them") if ranks else ("what is left of the job", "it")
        self.tell(f"SIGINT received: ending {what}; a second one kills {it}")

    def narrate(self, text: str) -> None:
        """Tell the user if he wants to know more."""
        self.actions.append(Say(text, loud=False))
