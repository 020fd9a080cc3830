"""The phases of an elastic job."""

from __future__ import annotations

from enum import Enum

__all__ = ["ENDS", "Phase"]


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
