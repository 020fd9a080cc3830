"""``mpirun``: which MPI it belongs to, and its command line for a job."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from horovod.errors import ConfigError, LaunchError
from horovod.launch.external.program import Order, StartLine
from horovod.launch.placement.hosts import named
from horovod.launch.programs import ask

__all__ = ["Make", "Mpi", "start_line", "mpirun_line", "recognise"]

_LIMIT_S = 30.0
_MANY_HOSTS = 64  # from here on one ssh starts them all, rather than a tree of them
_INSTALL = (
    "Install Open MPI 4.0 or newer, MPICH, MVAPICH, Intel MPI or Spectrum MPI; start the program by that "
    "MPI's own mpirun, without horovodrun; or use --gloo, which needs no MPI."
)


class Make(enum.Enum):
    OPEN_MPI = "Open MPI"
    SPECTRUM = "IBM Spectrum MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"


@dataclass(frozen=True)
class Mpi:
    """An installed MPI, by its ``mpirun``."""

    make: Make
    major: int
    """Of its version; 0 if unknown."""
    program: str

    @property
    def has_prrte(self) -> bool:
        """Open MPI's launcher since version 5, with options of its own."""
        return self.make is Make.OPEN_MPI and self.major >= 5


# The first that fits decides: Spectrum MPI mentions Open MPI, and Intel's is made of MPICH's HYDRA, as is
# MVAPICH's.
_SIGNS = (
    ("IBM Spectrum MPI", Make.SPECTRUM),
    ("Intel(R) MPI", Make.INTEL),
    ("Open MPI", Make.OPEN_MPI),
    ("OpenRTE", Make.OPEN_MPI),
    ("MVAPICH", Make.MPICH),
    ("MPICH", Make.MPICH),
    ("HYDRA", Make.MPICH),
)


def recognise(program: str, environ: Mapping[str, str]) -> Mpi:
    """Ask the ``mpirun`` at this path for its version, in the environment of the job.

    Raises:
        LaunchError: it does not work, or nobody knows it.
    """
    said = ask([program, "--version"], _LIMIT_S, environ)
    text = said.stdout + said.stderr + said.broken
    if said.status != 0 or not text.strip():
        raise LaunchError(
            f"{program} --version ended with status {said.status}: {text.strip()[:500]!r}. {_INSTALL}"
        )
    make = next((make for sign, make in _SIGNS if sign in text), None)
    if make is None:
        raise LaunchError(
            f"{program} belongs to an MPI that is not known here: {text.strip()[:500]!r}. {_INSTALL}"
        )
    version = re.search(r"(\d+)\.\d+", text)
    return Mpi(make, int(version[1]) if version else 0, program)


def start_line(order: Order) -> StartLine:
    """The command line of the ``mpirun`` that is installed."""
    return mpirun_line(recognise(order.program, order.environment), order)


def mpirun_line(mpi: Mpi, order: Order) -> StartLine:
    """The command line of ``mpirun`` for `order`.

    Raises:
        ConfigError: this MPI cannot do what was asked for.
    """
    if any(":" in host.name for host in order.hosts):
        raise ConfigError("mpirun takes no IPv6 addresses as hosts: give names, or use --launcher ssh.")
    if mpi.make in (Make.OPEN_MPI, Make.SPECTRUM):
        return _open_mpi(mpi, order)
    return _hydra(mpi, order)


def _open_mpi(mpi: Mpi, order: Order) -> StartLine:
    setting = "--prtemca" if mpi.has_prrte else "-mca"
    dashes = "--" if mpi.has_prrte else "-"
    shell = "ssh" if mpi.has_prrte else "rsh"
    words = [mpi.program, "--allow-run-as-root", "-np", str(order.processes)]
    hosts = named(order.hosts) or f"localhost:{order.processes}"
    words += ["--host" if mpi.has_prrte else "-H", hosts]
    if order.binding is not None:
        words += order.binding
    elif mpi.make is Make.SPECTRUM:
        words += ["-bind-to", "socket", "-map-by", "socket", "-rank-by", "core"]
    else:
        # Bound, ranks could use one core each only, and more ranks than cores could not be started at all.
        words += [f"{dashes}bind-to", "none", f"{dashes}map-by", "slot"]
    if mpi.make is Make.SPECTRUM and order.tcp:
        words.append("-tcp")
    if len(order.hosts) >= _MANY_HOSTS:
        words += [setting, f"plm_{shell}_no_tree_spawn", "true"]
        words += [setting, f"plm_{shell}_num_concurrent", str(len(order.hosts))]
    if order.ssh:
        words += [setting, f"plm_{shell}_args", " ".join(order.ssh)]
    if order.interfaces:
        words += ["--mca" if mpi.has_prrte else "-mca", "btl_tcp_if_include", ",".join(order.interfaces)]
    for name in order.exported:
        words += ["-x", name]
    return StartLine((*words, *order.arguments, *order.command), _open_mpi_environment(mpi, order))


def _open_mpi_environment(mpi: Mpi, order: Order) -> dict[str, str]:
    environment = dict(order.environment)
    # The hosts are on the command line: a list of others, or of fewer, must not stand against it.
    for name in ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"):
        environment.pop(name, None)
    if mpi.has_prrte:
        # Version 5 takes no notice of the old names, which an MPIJob's pod has.
        for old, new in (
            ("OMPI_MCA_orte_keep_fqdn_hostnames", "PRTE_MCA_prte_keep_fqdn_hostnames"),
            ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"),
            ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"),
        ):
            if old in environment:
                environment.setdefault(new, environment[old])
    return environment


def _hydra(mpi: Mpi, order: Order) -> StartLine:
    intel = mpi.make is Make.INTEL
    words = [mpi.program, "-np", str(order.processes)]
    counts = {host.slots for host in order.hosts}
    if not intel and order.hosts:
        words += ["-hosts", named(order.hosts)]
    elif intel and len(counts) == 1:
        words += ["-ppn", str(counts.pop()), "-hosts", ",".join(host.name for host in order.hosts)]
    elif intel and counts:
        file = order.folder / "machines"
        file.write_text("".join(f"{host.name}:{host.slots}\n" for host in order.hosts))
        words += ["-machinefile", str(file)]
    if order.binding is not None:
        words += order.binding
    elif not intel:
        words += ["-bind-to", "none"]
    if len(order.interfaces) > 1:
        raise ConfigError(
            f"{mpi.make.value} uses one network interface, not {len(order.interfaces)} "
            f"({', '.join(order.interfaces)}): name the one, or use --launcher ssh."
        )
    if order.interfaces:
        words += ["-iface", order.interfaces[0]]
    words += ["-genvlist", ",".join(order.exported)]
    environment = dict(order.environment)
    for name in ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE", "I_MPI_PERHOST"):
        environment.pop(name, None)  # as for Open MPI
    if order.ssh:
        further = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if intel else "HYDRA_LAUNCHER_EXTRA_ARGS"
        environment[further] = " ".join(filter(None, (environment.get(further), *order.ssh)))
    return StartLine((*words, *order.arguments, *order.command), environment)
