"""The job to run, as the command line or `horovod.run` asks for it, and the results that ranks send home."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from horovod.launch.contracts.tasks import TaskSource
from horovod.launch.placement.hosts import HostSlots, Slot, assign_ranks

__all__ = ["Job", "RankResults", "SshOptions"]


class SshOptions(NamedTuple):
    """Options for reaching other hosts by ssh. None and empty: as the user's ssh configuration says."""

    port: int | None = None
    identity_file: str | None = None
    arguments: tuple[str, ...] = ()
    """Further words for ``ssh``, before the host."""


@dataclass(frozen=True)
class Job:
    """A job: its command, where it runs, and how it is shown."""

    command: tuple[str, ...]
    processes: int
    hosts: tuple[HostSlots, ...] = ()
    """Hosts where ranks may be placed; empty: all on this machine."""
    launcher: str = "ssh"
    """Name of the launcher that starts the ranks: one of `horovod.launch.contracts.registry`."""
    arguments: tuple[str, ...] = ()
    """Further words for the program that is the launcher; ``binding``: those that bind ranks to cores, None:
    its own; ``tcp``: it shall use no InfiniBand.
    """
    binding: tuple[str, ...] | None = None
    tcp: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that command-line options stand for."""
    timestamps: bool = False
    output_directory: Path | None = None
    shown: frozenset[int] | None = None
    """Ranks whose output is shown; None: all."""
    ssh: SshOptions = field(default_factory=SshOptions)
    call: Sequence[memoryview] = ()
    """Bytes that ranks read and answer, if the command calls a function; see `WorkerPlan.call`."""
    call_is_input: bool = False
    """`call` is what every rank reads on its standard input, and there is no answer."""
    feeds: bool = False
    """Rank 0 reads the standard input of this process."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that ranks of different hosts may use; empty: those that work."""
    status: bool | None = None
    """Show a line that tells how far the job is; None: if standard error is a terminal."""
    tasks: TaskSource | None = None
    """Source of the processes below which ranks run, for a launcher that cannot start them."""
    listeners: Mapping[str, Callable[[str, Any], None]] = field(default_factory=dict)
    """By prefix of keys: what hears of what ranks put into the store there, as of `StoreServer.observe`."""

    def place(self) -> tuple[Slot, ...]:
        """Place the ranks, all on this machine if no hosts are named.

        Raises:
            ConfigError: there are fewer slots than processes.
        """
        hosts = self.hosts or (HostSlots("localhost", self.processes),)
        return assign_ranks(hosts, self.processes, self.processes)


@dataclass
class RankResults:
    """Results that ranks sent home, by rank. ``here``: ranks on the machine of this process, which could do
    anyway what their bytes might make this process do.
    """

    sent: dict[int, bytearray] = field(default_factory=dict)
    here: set[int] = field(default_factory=set)
