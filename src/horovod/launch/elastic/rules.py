"""Phases of an elastic job, and its rules: the size of its world, and how long it is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from horovod.config import Config
from horovod.errors import ConfigError
from horovod.launch.elastic.hosts import checked_cooldown

__all__ = ["ENDS", "Phase", "Rules"]


class Phase(Enum):
    """A phase of an elastic job; its value says what is awaited."""

    SLOTS = "slots for the first world"
    FIRST = "the workers of the first world"
    TRAINING = "nothing"
    RESET = "members of the world that has ended"
    SHORT = "enough workers for the next world"
    ENDING = "the end of all workers"
    OVER = "nothing any more"


ENDS = (Phase.ENDING, Phase.OVER)


@dataclass(frozen=True)
class Rules:
    """
    Attributes:
        processes: slots that must be there before the first start.
        least: ranks of a world after that.
        most: ranks of any world; None: as many as there are slots.
        slots_wait_s: how long enough slots are waited for, at the start and at each reset.
        reset_limit: changes of the world that are allowed; None: any number.
        cooldown_s: range of the time that a failed host is left out; None: for ever.
        spares: workers beyond ``most`` that are kept ready to take over.
        by_slot: a failed worker costs its slot, not its whole host. None: if no other host has a worker with
            the state of the training.
        fixed_hosts: no further hosts can come.
        lost_s: how long a rank may give no sign of life. So long the driver waits for a rank that is stopped,
            or that others have lost otherwise than by its silence, before it ends it.
        exit_s: how long the process of a rank whose script has failed may take to end, before the others
            go on without it.
        gather_s: how long ready newcomers wait for others that are still starting.
        at_once: a worker on a new slot is started as a member of the next world, which the others then form
            without waiting for it. Else it prepares beside the world that trains.
        success_s: how long the others may take to end when one has succeeded; None: for ever.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    processes: int
    least: int
    most: int | None = None
    slots_wait_s: float = 600.0
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] | None = None
    spares: int = 0
    by_slot: bool | None = None
    fixed_hosts: bool = False
    lost_s: float = Config.heartbeat_timeout_s
    exit_s: float = 0.3
    gather_s: float = 10.0
    at_once: bool = False
    success_s: float | None = None

    def __post_init__(self) -> None:
        checked_cooldown(self.cooldown_s)
        if self.least < 1:
            raise ConfigError(f"An elastic world needs one rank at least, not {self.least}.")
        if self.least > self.processes:
            raise ConfigError(
                f"--min-np {self.least} is more than -np {self.processes}: training could start with fewer "
                "ranks than it may go on with. Lower --min-np, or raise -np."
            )
        if self.most is not None and self.most < self.processes:
            raise ConfigError(
                f"--max-np {self.most} is less than -np {self.processes}: the first world would be too "
                "large. Raise --max-np, or lower -np."
            )
