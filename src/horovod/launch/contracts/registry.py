"""The table of launchers: a row for each, with what is known of it before it is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from horovod.bootstrap.store.server import StoreServer
from horovod.errors import ConfigError
from horovod.launch.contracts.fleet import Fleet, FleetPlan, MakeFleet, Request
from horovod.launch.contracts.launcher import Launcher
from horovod.launch.output.streams import Output

__all__ = ["CHOICES", "LAUNCHERS", "Row", "load_launcher", "make_fleet"]


class Row(NamedTuple):
    """Facts about a launcher that are known before it is imported."""

    name: str
    where: str
    """``module:attribute`` of a class that is a `Launcher`; with a `program`, of a `ProgramLauncher`
    (`horovod.launch.external.program_launcher`).
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
            "horovod.launch.launchers.local:LocalLauncher",
            stays_here=True,
            fleet="horovod.launch.launchers.fleet:local_fleet",
        ),
        Row(
            "ssh",
            "horovod.launch.launchers.ssh:SshLauncher",
            switch="--gloo",
            on_one_host="local",
            stays_here=True,
            fleet="horovod.launch.launchers.fleet:ssh_fleet",
        ),
        Row(
            "mpirun",
            "horovod.launch.launchers.mpirun:MpirunLauncher",
            switch="--mpi",
            program="mpirun",
            missing="--mpi and --launcher mpirun need mpirun, which is not on PATH. Install Open MPI, MPICH "
            "or Intel MPI (or load its module), or leave the option out: MPI is not needed.",
            rank_variables=("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK"),
            stays_here=True,
        ),
        Row(
            "srun",
            "horovod.launch.launchers.srun:SrunLauncher",
            program="srun",
            missing="--launcher srun needs Slurm's srun, which is not on PATH. Leave the option out, or run "
            "this where Slurm is installed.",
            rank_variables=("SLURM_PROCID",),
        ),
        Row(
            "jsrun",
            "horovod.launch.launchers.jsrun:JsrunLauncher",
            switch="--jsrun",
            program="jsrun",
            missing="--jsrun needs jsrun, which is not on PATH. Use --gloo or --mpi in its place.",
            rank_variables=("JSM_NAMESPACE_RANK", "OMPI_COMM_WORLD_RANK"),
            lsf=True,
        ),
        Row(
            "spark",
            "horovod.launch.launchers.spark:SparkLauncher",
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


def load_launcher(row: Row) -> Launcher:
    """A new one; its module is imported when it is first asked for."""
    launcher: Launcher = _load(row.where)()
    return launcher


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
    make: MakeFleet = _load(row.fleet)
    return make(request, plan, output, store)


def _load(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)
