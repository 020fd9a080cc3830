"""The program that starts the ranks: the order to it, the command line that follows, and its process.

Settings travel in the environment; command lines, which everybody can read, hold names of variables only.
Keys do not travel: see `key`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from horovod.bootstrap.place.interpreter import module_words
from horovod.bootstrap.place.proc import every_process
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.errors import ConfigError, LaunchError
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.registry import LAUNCHERS, load
from horovod.launch.environment import for_other_hosts
from horovod.launch.external.key import NO_CARD
from horovod.launch.placement.hosts import HostSlots
from horovod.launch.programs import find_program

__all__ = [
    "Order",
    "Program",
    "StartLine",
    "dry_line",
    "exported_names",
    "line_for",
    "make_order",
    "used_hosts",
]

# Set by batch systems and MPI for the process that reads them: wrong in another one.
_OF_OTHERS = re.compile(r"(OMPI|OPAL|PMIX|PRTE|PMI|MPI|MV2_COMM|HYDI|HYDRA|I_MPI|SLURM|SLURMD|JSM|PBS|LSB)_")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Order:
    """Order to start `command` once per rank, on `hosts` as far as they are known.

    Attributes:
        program: the absolute path of the launcher's.
        hosts: with the number of ranks that each shall get; empty: the launcher decides.
        environment: of the launcher and, as far as ``exported`` names it, of the ranks.
        exported: names of the variables that ranks need.
        folder: for files that the launcher is given; it outlives the job.
    """

    program: str
    command: tuple[str, ...]
    processes: int
    hosts: tuple[HostSlots, ...]
    environment: Mapping[str, str]
    exported: tuple[str, ...]
    folder: Path
    arguments: tuple[str, ...] = ()
    binding: tuple[str, ...] | None = None
    interfaces: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ()
    tcp: bool = False


@dataclass(frozen=True)
class StartLine:
    """The command line of a launcher, and the environment it runs in."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())
    """Remarks for the user."""


def exported_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that ranks on other hosts shall have, in order: what a launcher sets for its own
    processes is left to it.
    """
    return tuple(
        sorted(
            name
            for name in environment
            if _NAME.match(name) and not _OF_OTHERS.match(name) and name != SECRET_VARIABLE
        )
    )


def dry_line(job: Job, inherited: Mapping[str, str]) -> StartLine:
    """The command line that `job` would be started with, but for the variables that the job itself adds.

    Raises:
        ConfigError: the launcher cannot do what was asked for.
        LaunchError: it is not there, or not known.
    """
    with tempfile.TemporaryDirectory(prefix="farandole-launch-") as folder:
        return line_for(job, inherited, Path(folder))


def line_for(job: Job, environment: Mapping[str, str], folder: Path, card: str = NO_CARD) -> StartLine:
    """The command line of the launcher's program for `job`.

    Args:
        environment: of the job.
        folder: for files that the program is given.
        card: leads to the key of the job.

    Raises:
        ConfigError: the launcher cannot do what was asked for.
        LaunchError: it is not there, or not known.
    """
    line: StartLine = load(LAUNCHERS[job.launcher].line)(make_order(job, environment, folder, card))
    return line


def make_order(job: Job, environment: Mapping[str, str], folder: Path, card: str = NO_CARD) -> Order:
    """Make the order to the program for `job`; arguments as of `line_for`.

    Raises:
        ConfigError: there is no such program.
    """
    row = LAUNCHERS[job.launcher]
    program = find_program(row.program, environment)
    if program is None:
        raise ConfigError(row.missing)
    ssh = [] if job.ssh.port is None else ["-p", str(job.ssh.port)]
    if job.ssh.identity_file is not None:
        ssh += ["-i", job.ssh.identity_file]
    return Order(
        program=program,
        command=(
            sys.executable,
            *module_words("horovod.launch.rank_wrapper", top=str(Path(__file__).parents[3])),
            job.launcher,
            card,
            *job.command,
        ),
        processes=job.processes,
        hosts=used_hosts(job),
        # A dry run has the user's own environment, with whatever key is in that.
        environment={name: value for name, value in environment.items() if name != SECRET_VARIABLE},
        exported=exported_names(for_other_hosts(environment)[0]),
        folder=folder,
        arguments=job.arguments,
        binding=job.binding,
        interfaces=job.interfaces,
        ssh=(*ssh, *job.ssh.arguments),
        tcp=job.tcp,
    )


def used_hosts(job: Job) -> tuple[HostSlots, ...]:
    """The hosts that get ranks, with how many; empty if nobody has named any."""
    counts = Counter(slot.hostname for slot in job.place()) if job.hosts else {}
    return tuple(HostSlots(name, count) for name, count in counts.items())


class Program:
    """Runs from its making to ``close``, in a session of its own: Ctrl-C reaches us only, who decide.

    Raises:
        LaunchError: it cannot be started.
    """

    def __init__(self, line: StartLine) -> None:
        try:
            self._child = subprocess.Popen(
                line.words, env=line.environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"{line.words[0]} cannot be started: {error.strerror}") from error
        self._ended = os.pidfd_open(self._child.pid)

    def fileno(self) -> int:
        """Readable when it has ended."""
        return self._ended

    def send(self, signum: int) -> None:
        """Send a signal to it and to what it has started here."""
        try:
            os.killpg(self._child.pid, signum)
        except ProcessLookupError:
            pass  # it has ended

    def end(self, patience_s: float, tell: Callable[[signal.Signals], None]) -> int | None:
        """Wait until it has ended, so long before each signal, which ``tell`` is told. Returns its status,
        None if it did not end by itself.
        """
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            if signum is not None:
                tell(signum)
                self.send(signum)
            try:
                status = self._child.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
            return status if signum is None else None
        return None

    def close(self) -> None:
        """End it, and what it has left behind, such as ssh clients of hosts that are silent."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        os.close(self._ended)
        for pid, stat in every_process():
            if stat.session == self._child.pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue  # it has ended
