"""Variables in which other launchers tell a process its place: one entry per launcher.

An entry only counts when its ``evidence`` is there: variables such as ``RANK`` mean nothing by themselves,
and those of Slurm are also set in a batch script, which is not a task.

Launchers start each other: mpirun starts its daemons with srun, srun starts torchrun. The one that started
this process last counts; that is the order of ``LAUNCHERS``. The variables of the others are those of another
process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from horovod.bootstrap.trust.unix import NAME_OF_KEY

__all__ = ["LAUNCHERS", "OWN", "LaunchVariables", "MeetingPoint", "meeting_point", "present"]


@dataclass(frozen=True)
class LaunchVariables:
    """The variables of one launcher. Empty = it has none of this kind; of several sizes the first one
    counts, and without any PMIx has to be asked. ``job`` together name the job, on every rank alike; ``head``
    holds the host of rank 0, or a list of hosts as Slurm writes it; ``hosts`` the number of hosts;
    ``hostname`` the launcher's name of this host.

    ``pmix_programs``: what starts it, on PATH, and may have brought a PMIx library with it.

    ``keeps_locals``: local places are those that the launcher said, as scripts read its variables as well.
    Otherwise they are counted when the ranks meet, in the order of ranks, as MPI itself does; what the
    launcher said has another order now and then.
    """

    name: str
    rank: str
    sizes: tuple[str, ...]
    local_rank: str = ""
    local_size: str = ""
    cross_rank: str = ""
    cross_size: str = ""
    keeps_locals: bool = False
    evidence: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    head: str = ""
    hosts: str = ""
    hostname: str = ""
    pmix_programs: tuple[str, ...] = ()

    def job_name(self, environ: Mapping[str, str]) -> str:
        """Return the launcher's name for the job; empty if it does not say."""
        words = [environ.get(name, "") for name in self.job]
        return "/".join((self.name, *words)) if words and all(words) else ""


@dataclass(frozen=True)
class MeetingPoint:
    """Place at which rank 0 serves the store of another launcher's job, and a text that names the job. The
    port of a host, or the name of a socket (``unix.NAME_OF_KEY``), follows from the key: another user cannot
    know it, and so not take it first.
    """

    host: str
    job: str


OWN = LaunchVariables(
    "horovodrun",
    "HOROVOD_RANK",
    ("HOROVOD_SIZE",),
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    keeps_locals=True,
    hostname="HOROVOD_HOSTNAME",
)

LAUNCHERS = (
    LaunchVariables(
        "torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        keeps_locals=True, evidence=("TORCHELASTIC_RUN_ID",),
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
        head="MASTER_ADDR",
    ),
    LaunchVariables(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", job=("PMIX_NAMESPACE",),
        pmix_programs=("prterun", "mpirun"),
    ),
    LaunchVariables(
        "MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",),
        "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    LaunchVariables(
        "jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",),
        "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", pmix_programs=("jsrun",),
    ),
    LaunchVariables(
        "Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), "FLUX_TASK_LOCAL_ID", job=("FLUX_JOB_ID",),
        hosts="FLUX_JOB_NNODES",
    ),
    LaunchVariables(
        "MPICH's or Intel's mpirun", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        evidence=("MPI_LOCALRANKID",),
    ),
    LaunchVariables(
        "srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID",
        evidence=("SLURM_STEP_ID", "SLURM_PROCID"),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"), head="SLURM_STEP_NODELIST", hosts="SLURM_STEP_NUM_NODES",
        hostname="SLURMD_NODENAME",
    ),
    LaunchVariables(
        "torch.distributed", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE", keeps_locals=True,
        evidence=("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), job=("MASTER_ADDR", "MASTER_PORT"),
        head="MASTER_ADDR",
    ),
    LaunchVariables("PMI", "PMI_RANK", ("PMI_SIZE",)),
    LaunchVariables(
        "PMIx", "PMIX_RANK", (), evidence=("PMIX_RANK", "PMIX_NAMESPACE"), job=("PMIX_NAMESPACE",),
    ),
)  # fmt: skip


def present(family: LaunchVariables, environ: Mapping[str, str]) -> bool:
    """Return whether ``family`` started this process, judged by its evidence, else by rank or size."""
    if family.evidence:
        return all(environ.get(name) for name in family.evidence)
    return any(environ.get(name) for name in (family.rank, *family.sizes))


def meeting_point(family: LaunchVariables, environ: Mapping[str, str], size: int) -> MeetingPoint | None:
    """Find where the ranks of a job of ``family`` can meet without being told; None if its variables do not
    say.

    On one host that is a socket which no other host can reach.
    """
    job = family.job_name(environ)
    if not job:
        return None
    one_host = environ.get(family.local_size) == str(size) or environ.get(family.hosts) == "1"
    host = NAME_OF_KEY if one_host else _first_host(environ.get(family.head, ""))
    if not host:
        return None
    return MeetingPoint(host, job)


def _first_host(hosts: str) -> str:
    """``gpu[08-11,20]-ib,login`` -> ``gpu08-ib``."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", hosts)
    return "".join(part or "" for part in found.groups()) if found else ""
