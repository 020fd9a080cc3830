"""The table of launchers: a row for each, with what is known of it before it is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from horovod.bootstrap.store.server import StoreServer
from horovod.errors import ConfigError
from horovod.launch.contracts.fleet import (
    ClosedFleet,
    Fleet,
    FleetPlan,
    MakeClosedFleet,
    MakeFleet,
    Request,
)
from horovod.launch.output.streams import Output

__all__ = ["CHOICES", "LAUNCHERS", "Row", "load", "make_closed_fleet", "make_fleet"]

_BY_PROGRAM = "horovod.launch.external.fleet:ProgramFleet"


class Row(NamedTuple):
    """Facts about a launcher that are known before it is imported."""

    name: str
    closed: str
    """``module:attribute`` of what is `MakeClosedFleet`, for jobs whose ranks are all known."""
    line: str = ""
    """``module:attribute`` of what makes a `StartLine` of an `Order` (`horovod.launch.external.program`): the
    command line of its `program`.
    """
    switch: str = ""
    """An option that asks for it, besides ``--launcher``."""
    on_one_host: str = ""
    """The launcher that takes its place where all hosts are this machine."""
    program: str = ""
    """Program that starts the ranks, found on PATH; empty: we do."""
    missing: str = ""
    """Message where there is no such program, with what to try."""
    rank_variables: tuple[str, ...] = ()
    """Variables by which a rank learns who it is: the first of these that the program sets, each the variable
    of a family in `horovod.bootstrap.place.launchers`; those of an enclosing launcher must not be taken
    for it. Empty: the variables that we set.
    """
    lsf: bool = False
    """Is for jobs of LSF only, and there used without being asked for."""
    stays_here: bool = False
    """Hosts that nobody has named are this machine."""
    hidden: bool = False
    """Needs what a command line cannot give (`Job.tasks`)."""
    fleet: str = ""
    """``module:attribute`` of what is `MakeFleet`, for elastic jobs; empty: it cannot add ranks to a job."""


LAUNCHERS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row(
            "local",
            "horovod.launch.launchers.local:LocalFleet",
            stays_here=True,
            fleet="horovod.launch.launchers.fleet:local_fleet",
        ),
        Row(
            "ssh",
            "horovod.launch.launchers.ssh:SshFleet",
            switch="--gloo",
            on_one_host="local",
            stays_here=True,
            fleet="horovod.launch.launchers.fleet:ssh_fleet",
        ),
        Row(
            "mpirun",
            _BY_PROGRAM,
            line="horovod.launch.launchers.mpirun:start_line",
            switch="--mpi",
            program="mpirun",
            missing="--mpi and --launcher mpirun need mpirun, which is not on PATH. Install Open MPI, MPICH "
            "or Intel MPI (or load its module), or leave the option out: MPI is not needed.",
            rank_variables=("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK"),
            stays_here=True,
        ),
        Row(
            "srun",
            _BY_PROGRAM,
            line="horovod.launch.launchers.srun:start_line",
            program="srun",
            missing="--launcher srun needs Slurm's srun, which is not on PATH. Leave the option out, or run "
            "this where Slurm is installed.",
            rank_variables=("SLURM_PROCID",),
        ),
        Row(
            "jsrun",
            _BY_PROGRAM,
            line="horovod.launch.launchers.jsrun:start_line",
            switch="--jsrun",
            program="jsrun",
            missing="--jsrun needs jsrun, which is not on PATH. Use --gloo or --mpi in its place.",
            rank_variables=("JSM_NAMESPACE_RANK", "OMPI_COMM_WORLD_RANK"),
            lsf=True,
        ),
        Row(
            "spark",
            "horovod.launch.launchers.spark:TaskFleet",
            hidden=True,
            fleet="horovod.launch.launchers.spark:SparkFleet",
        ),
    )
}

CHOICES = tuple(
    name
    for name, one in LAUNCHERS.items()
    if not one.hidden and all(row.on_one_host != name for row in LAUNCHERS.values())
)
"""Launchers that a user can ask for."""


def make_closed_fleet(row: Row, request: Request, output: Output) -> ClosedFleet:
    """Make the fleet of this launcher, for a job whose ranks are all known.

    Raises:
        LaunchError: this machine has no room for it.
    """
    make: MakeClosedFleet = load(row.closed)
    return make(request, output)


def make_fleet(row: Row, request: Request, plan: FleetPlan, output: Output, store: StoreServer) -> Fleet:
    """Make the fleet of this launcher, for an elastic job.

    Raises:
        ConfigError: it has none.
        LaunchError: this machine has no room for it.
    """
    if not row.fleet:
        able = " or ".join(f"--launcher {name}" for name in CHOICES if LAUNCHERS[name].fleet)
        also = ", also in a job of Slurm: its nodes must allow that" if row.name == "srun" else ""
        raise ConfigError(
            f"{row.name} cannot add ranks to a running job, as elastic training needs: use {able}{also}."
        )
    make: MakeFleet = load(row.fleet)
    return make(request, plan, output, store)


def load(where: str) -> Any:
    """Import what ``module:attribute`` names."""
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)
