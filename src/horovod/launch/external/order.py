"""Orders to a program that starts ranks, and the command line that follows from them.

Settings travel in the environment; command lines, which everybody can read, hold names of variables only.
Keys do not travel: see `key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.launch.placement.hosts import HostSlots

__all__ = [
    "Order",
    "StartLine",
    "exported_names",
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
