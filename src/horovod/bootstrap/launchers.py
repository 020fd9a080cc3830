"""What other launchers tell a process about its place: names of environment variables, one entry per
launcher.

An entry only counts when its ``evidence`` is there: variables such as ``RANK`` mean nothing by themselves,
and those of Slurm are also set in a batch script, which is not a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FAMILIES", "OWN", "Family", "present"]


@dataclass(frozen=True)
class Family:
    """The variables of one launcher. Empty = it has none of this kind; of several sizes the first one
    counts.
    """

    name: str
    rank: str
    sizes: tuple[str, ...]
    local_rank: str = ""
    local_size: str = ""
    cross_rank: str = ""
    cross_size: str = ""
    evidence: tuple[str, ...] = ()


OWN = Family(
    "horovodrun",
    "HOROVOD_RANK",
    ("HOROVOD_SIZE",),
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)

FAMILIES = (
    Family(
        "torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "GROUP_WORLD_SIZE", evidence=("TORCHELASTIC_RUN_ID",),
    ),
    Family(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Family(
        "MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",),
        "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    Family(
        "jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",),
        "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE",
    ),
    Family("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), "FLUX_TASK_LOCAL_ID"),
    Family(
        "srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID",
        evidence=("SLURM_STEP_ID", "SLURM_PROCID"),
    ),
    Family("MPICH's or Intel's mpirun", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)  # fmt: skip


def present(family: Family, environ: Mapping[str, str]) -> bool:
    """Whether this process was started by ``family``, judged by its evidence, else by rank or size."""
    if family.evidence:
        return all(environ.get(name) for name in family.evidence)
    return any(environ.get(name) for name in (family.rank, *family.sizes))
