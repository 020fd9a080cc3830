"""News from host agents, besides those of their ranks."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.launch.contracts.events import Event

__all__ = [
    "CaughtUp",
    "Greeting",
    "InputTaken",
    "Lost",
    "News",
    "NoDirectory",
    "Nobody",
    "OutputLost",
    "Retry",
    "Unreachable",
]


@dataclass(frozen=True)
class Greeting:
    """An agent runs there."""

    host: str
    """Name that the host gives itself."""
    machine: str
    """The same text if and only if two names mean one system."""
    cores: int
    python: str
    origin: str
    """Our own address as that host sees it; empty if unknown."""


@dataclass(frozen=True)
class Retry:
    """The host could not be reached, and is tried again."""

    reason: str


@dataclass(frozen=True)
class Unreachable:
    """The host could not be reached; the last news of it."""

    reason: str


@dataclass(frozen=True)
class NoDirectory:
    """The working directory does not exist there."""

    errno: int


@dataclass(frozen=True)
class Nobody:
    """The agent that should be attached is not there."""


@dataclass(frozen=True)
class CaughtUp:
    """The agent that was attached has told all that happened before."""


@dataclass(frozen=True)
class OutputLost:
    """The agent had no room for so much of what ranks printed while no launcher was there."""

    size_bytes: int


@dataclass(frozen=True)
class InputTaken:
    """The rank that is fed has room for so much more."""

    size_bytes: int


@dataclass(frozen=True)
class Lost:
    """The connection to the host was lost; the last news of it."""

    reason: str


News = (
    Greeting | Retry | Unreachable | NoDirectory | Nobody | CaughtUp | OutputLost | InputTaken | Lost | Event
)
