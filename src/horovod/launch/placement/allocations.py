"""Room for a job that names no hosts: those that a batch system has given to it, else GPUs or cores here.

Each batch system is one function: it looks for its evidence in the environment, and either has nothing to say
(None) or says which hosts there are. A source that is half there is an error: started on this machine alone,
a job would leave the others idle in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.bootstrap.place.cores import usable_cores
from horovod.errors import ConfigError
from horovod.launch.phrases import counted
from horovod.launch.placement.hosts import (
    MOST_HOSTS,
    Allocated,
    HostSlots,
    expand_list,
    host_text,
    merge_hosts,
    number_of,
    read_hostfile,
)
from horovod.launch.placement.lsf import lsf_allocation

__all__ = ["Room", "find_allocation", "room_here", "usable_gpus"]

_DEVICES = Path("/dev")
_MPI_JOB_HOSTFILE = "/etc/mpi/hostfile"
_MPI_JOB_VARIABLES = ("OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")
_MPI_JOB_SLOTS = ("OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST")


def find_allocation(environ: Mapping[str, str]) -> Allocated | None:
    """The hosts of the allocation this process runs in, None if it runs in none.

    Raises:
        ConfigError: a batch system says something that cannot be understood.
        LaunchError: it cannot be asked.
    """
    return next((found for source in _SOURCES if (found := source(environ)) is not None), None)


def _mpi_job(environ: Mapping[str, str]) -> Allocated | None:
    """The launcher pod of an MPIJob of Kubernetes."""
    if environ.get("K_MPI_JOB_ROLE") == "worker":
        return None
    if environ.get("K_MPI_JOB_ROLE") != "launcher" and "KUBERNETES_SERVICE_HOST" not in environ:
        return None  # on other machines these variables configure MPI, and nothing else
    variable = next((name for name in _MPI_JOB_VARIABLES if environ.get(name)), "")
    path = environ.get(variable) or _MPI_JOB_HOSTFILE
    if not variable and not Path(path).exists():
        return None
    variables = [name for name in _MPI_JOB_SLOTS if environ.get(name)]
    slots = number_of(environ[variables[0]], variables[0]) if variables else 1
    hosts = read_hostfile(path, variable, default_slots=slots)
    return Allocated(f"the MPIJob's {path}", hosts)


def _slurm(environ: Mapping[str, str]) -> Allocated | None:
    """A batch script or an interactive shell of Slurm."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes or not environ.get("SLURM_JOB_ID"):
        return None
    step, tasks = environ.get("SLURM_STEP_ID"), environ.get("SLURM_STEP_NUM_TASKS", "1")
    if step and tasks != "1":
        raise ConfigError(
            f"horovodrun is itself task {environ.get('SLURM_PROCID', '?')} of {tasks} of srun, and each "
            "would start a job of its own. Start it once, without srun; or start the program with srun and "
            "without horovodrun."
        )
    names = expand_list(nodes)
    slots = _slurm_slots(environ, len(names))
    hosts = merge_hosts(HostSlots(*each) for each in zip(names, slots, strict=True))
    tasks = environ.get("SLURM_NTASKS", "")
    # `-n 3 --ntasks-per-node=2` has two hosts of two slots, and three tasks.
    count = number_of(tasks, "SLURM_NTASKS") if tasks and not step else 0
    processes = count if 0 < count < sum(slots) else 0
    number = environ["SLURM_JOB_ID"]
    return Allocated(f"Slurm job {number}", hosts, processes, slurm_job=number)


def _slurm_slots(environ: Mapping[str, str], nodes: int) -> list[int]:
    """Tasks per node. In a step these may be those of the step, which is not all of the job: then as many as
    its cores have room for.
    """
    tasks = _repeated(environ, "SLURM_TASKS_PER_NODE")
    if len(tasks) == nodes:
        return tasks
    cores = _repeated(environ, "SLURM_JOB_CPUS_PER_NODE")
    if len(cores) == nodes:
        per_task = max(1, number_of(environ.get("SLURM_CPUS_PER_TASK") or "1", "SLURM_CPUS_PER_TASK"))
        return [max(1, count // per_task) for count in cores]
    raise ConfigError(
        f"Slurm's job has {counted(nodes, 'node')} "
        f"(SLURM_JOB_NODELIST={environ.get('SLURM_JOB_NODELIST', '')}), but "
        f"SLURM_TASKS_PER_NODE={environ.get('SLURM_TASKS_PER_NODE', '')} does not say how many processes "
        "each of them takes. Give the hosts with -H.",
        variable="SLURM_TASKS_PER_NODE",
    )


def _repeated(environ: Mapping[str, str], variable: str) -> list[int]:
    """``2(x3),1`` -> 2, 2, 2, 1."""
    text = environ.get(variable, "")
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        times = int(found[2] or 1) if found is not None else 0
        if found is None or len(counts) + times > MOST_HOSTS:
            raise ConfigError(f"{variable}={text} cannot be read: {part!r} in it.", variable=variable)
        counts += [int(found[1])] * times
    return counts


def _pbs(environ: Mapping[str, str]) -> Allocated | None:
    """PBS, Torque: a file with a line per slot."""
    path = environ.get("PBS_NODEFILE")
    if not path or not environ.get("PBS_JOBID"):
        return None
    hosts = read_hostfile(path, "PBS_NODEFILE")
    return Allocated(f"PBS job {environ['PBS_JOBID']}", hosts)


def _sge(environ: Mapping[str, str]) -> Allocated | None:
    """Grid Engine: a file with lines ``host slots queue processors``."""
    path = environ.get("PE_HOSTFILE")
    if not path or not environ.get("JOB_ID"):
        return None
    hosts = []
    for number, line in enumerate(host_text(path, "PE_HOSTFILE").splitlines(), start=1):
        words = line.split()
        if len(words) < 2:
            raise ConfigError(f"{path}, line {number}: cannot read {line!r}. Expected: host slots ...")
        hosts.append(HostSlots(words[0], number_of(words[1], f"{path}, line {number}")))
    return Allocated(f"Grid Engine job {environ['JOB_ID']}", merge_hosts(hosts))


class Room(NamedTuple):
    """``why``: what they are counted by, for the user."""

    processes: int
    why: str


def room_here(environ: Mapping[str, str]) -> Room:
    """One process for each GPU that programs may use here; without any, for each core."""
    gpus = usable_gpus(environ)
    if gpus:
        return Room(gpus, "one for each GPU")
    cores, limited = usable_cores()
    return Room(cores, f"one for each core that {'its control group allows' if limited else 'may be used'}")


def usable_gpus(environ: Mapping[str, str], devices: Path = _DEVICES) -> int:
    """NVIDIA's GPUs that are visible: those of the machine or container, as far as ``CUDA_VISIBLE_DEVICES``
    names them.
    """
    from horovod.devices.mask import present, visible  # only who gives no number pays for it

    return len(visible(environ, devices)) if present(devices) else 0


_SOURCES: Sequence[Callable[[Mapping[str, str]], Allocated | None]] = (
    _mpi_job,
    _slurm,
    lsf_allocation,
    _pbs,
    _sge,
)
