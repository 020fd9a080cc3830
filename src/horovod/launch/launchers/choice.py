"""The choice among launchers."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from typing import NamedTuple

from horovod.errors import ConfigError
from horovod.launch.contracts.registry import LAUNCHERS
from horovod.launch.placement.lsf import in_lsf

__all__ = ["Available", "choose_launcher", "look_around"]


class Available(NamedTuple):
    """Means of starting ranks that are available here."""

    own: bool
    """The native core, which ranks need to find each other without MPI."""
    programs: frozenset[str]
    """Programs of the table that are on PATH, as far as they may be chosen."""
    lsf: bool
    """This is a job of LSF."""


def look_around(environ: Mapping[str, str], request: str | None) -> Available:
    """Look for what `choose_launcher` may take, and for nothing else: that takes a plain job's time."""
    lsf = in_lsf(environ)
    wanted = {row.program for row in LAUNCHERS.values() if row.name == request or (row.lsf and lsf)}
    return Available(
        own=importlib.util.find_spec("horovod._core") is not None,
        programs=_found(wanted - {""}, environ),
        lsf=lsf,
    )


def _found(programs: Collection[str], environ: Mapping[str, str]) -> frozenset[str]:
    if not programs:
        return frozenset()
    from horovod.launch.programs import find_program

    return frozenset(name for name in programs if find_program(name, environ) is not None)


def choose_launcher(request: str | None, available: Available) -> str:
    """The launcher to use: the one asked for, else our own; in a job of LSF one that is for these,
    if it is there.

    Raises:
        ConfigError: it is not there, or cannot be used here.
    """
    if not available.own:
        raise ConfigError(
            "The native module horovod._core is missing, so no launcher can start ranks that find each "
            "other. Build or reinstall the package."
        )
    if request is None:
        for row in LAUNCHERS.values():
            if row.lsf and available.lsf and row.program in available.programs:
                return row.name
        return "ssh"
    row = LAUNCHERS[request]
    if row.lsf and not available.lsf:
        raise ConfigError(
            f"--{row.name} can be used in a job of LSF only, and LSB_JOBID is not set. Submit it with bsub, "
            "or use --gloo."
        )
    if row.program and row.program not in available.programs:
        raise ConfigError(row.missing)
    return row.name
