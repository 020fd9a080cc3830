"""``srun``: its command line for a job."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.errors import ConfigError
from horovod.launch.external.program import Order, StartLine
from horovod.launch.programs import ask

__all__ = ["start_line"]

_LIMIT_S = 30.0


def start_line(order: Order) -> StartLine:
    """A command line that says where each task goes, in a file with a host per task: left to itself, Slurm
    may put three tasks on one node and one on the other.
    """
    words = [order.program, "--ntasks", str(order.processes), "--kill-on-bad-exit=1"]
    if order.hosts:
        if any(":" in host.name for host in order.hosts):
            raise ConfigError("srun takes names of nodes, not addresses: use --launcher ssh for those.")
        file = order.folder / "nodes"  # a path with a slash: a file, not a name
        file.write_text("".join(f"{host.name}\n" * host.slots for host in order.hosts))
        words += ["--nodes", str(len(order.hosts)), "--distribution=arbitrary", f"--nodelist={file}"]
    if order.binding is not None:
        words += order.binding
    else:
        words.append("--cpu-bind=none")  # else each rank would have one core
    if order.environment.get("SLURM_STEP_ID"):
        words.append("--overlap")  # the shell this runs in is a step itself, and holds the cores
    if order.environment.get("HOROVOD_CPU_OPERATIONS", "").lower() == "mpi":
        words += _mpi_type(order.program, order.arguments)
    return StartLine((*words, *order.arguments, *order.command), _environment(order.environment))


def _mpi_type(program: str, arguments: tuple[str, ...]) -> list[str]:
    """Ranks that use MPI need it to be told of each other, which the site's default may not do."""
    if any(word.startswith("--mpi") for word in arguments):
        return []
    said = ask([program, "--mpi=list"], _LIMIT_S)
    known = f"{said.stdout} {said.stderr}".split()
    return next(([f"--mpi={kind}"] for kind in ("pmix", "pmi2") if kind in known), [])


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    # What the batch script was told about its own tasks would be taken for options of this step.
    ignored = {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
               "SLURM_DISTRIBUTION", "SLURM_HOSTFILE", "SLURM_EXPORT_ENV", "SLURM_CPU_BIND"}  # fmt: skip
    return {name: value for name, value in environment.items() if name not in ignored}
