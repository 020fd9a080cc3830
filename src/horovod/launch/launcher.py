"""The contract between supervision and a way of starting processes, and the table of those that exist.

A launcher is one file: it starts the ranks it is given, hands their output to `Output`, and reports what
becomes of them as events on a descriptor. When and why the ranks are ended is the supervisor's business.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from horovod.errors import LaunchError
from horovod.launch.hosts import Slot
from horovod.launch.output import Output

__all__ = [
    "LAUNCHERS",
    "CommandNotStarted",
    "Event",
    "Exited",
    "Finished",
    "JobInterrupted",
    "Launcher",
    "LeftBehind",
    "Refused",
    "Started",
    "WorkerPlan",
    "Workers",
    "load_launcher",
]


class CommandNotStarted(LaunchError):
    """The command cannot be run. ``exit_code`` as a shell has it: 127 not found, 126 not executable."""

    def __init__(self, message: str = "", *, exit_code: int = 126) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class JobInterrupted(LaunchError):
    """A signal told the launcher to end the job. ``exit_code`` is 128 + ``signum``."""

    def __init__(self, message: str = "", *, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum
        self.exit_code = 128 + signum


@dataclass(frozen=True)
class WorkerPlan:
    """What every rank runs, and what differs between them."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    own_environment: Mapping[int, Mapping[str, str]]
    """By rank: what is set on top of `environment`."""


@dataclass(frozen=True)
class Started:
    rank: int
    pid: int


@dataclass(frozen=True)
class Refused:
    """The command could not be run for `rank`; no further rank was started."""

    rank: int
    errno: int


@dataclass(frozen=True)
class Exited:
    """`exit_code` is negative for a rank that a signal ended."""

    rank: int
    exit_code: int


@dataclass(frozen=True)
class LeftBehind:
    """All ranks have ended, but `processes` that they started have not and are being ended."""

    processes: int


@dataclass(frozen=True)
class Finished:
    """Nothing of the job runs any more, except `survivors`: process ids that even SIGKILL did not end."""

    survivors: tuple[int, ...]


Event = Started | Refused | Exited | LeftBehind | Finished


class Workers(Protocol):
    """Running ranks. `Finished` is the last event; then call `close`."""

    def fileno(self) -> int:
        """Becomes readable when `events` has something."""

    def events(self) -> Sequence[Event]:
        """What happened since the last call, in order.

        Raises:
            LaunchError: the ranks can no longer be watched; all that could be ended has been.
        """

    def end(self, signum: int) -> None:
        """Send `signum` to everything the job runs, and SIGKILL to what is left after the grace time."""

    def kill(self) -> None:
        """Send SIGKILL to everything the job runs, now."""

    def close(self) -> None: ...


class Launcher(Protocol):
    """A way of starting processes."""

    def start(self, slots: Sequence[Slot], plan: WorkerPlan, output: Output) -> Workers:
        """Start one process per slot; what it prints is attached to `output`.

        Whatever happens to the launching process, even SIGKILL, ends the ranks.

        Raises:
            LaunchError: nothing could be started.
        """


LAUNCHERS: Mapping[str, str] = {
    "local": "horovod.launch.local:LocalLauncher",
}
"""Where each launcher lives; imported when first asked for."""


def load_launcher(name: str) -> Launcher:
    module, _, attribute = LAUNCHERS[name].partition(":")
    return cast(Launcher, getattr(importlib.import_module(module), attribute)())
