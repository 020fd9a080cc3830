"""Hosts of a job of IBM's LSF, and of the Cluster System Manager where that has made the allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from horovod.errors import ConfigError, LaunchError
from horovod.launch.placement.hosts import Allocated, HostSlots, merge_hosts, number_of, read_hostfile
from horovod.launch.programs import ask

__all__ = ["NodeShape", "in_lsf", "lsf_allocation", "node_shape"]

_CSM = "/opt/ibm/csm/bin"
_QUERY_LIMIT_S = 60.0
_MOST_OF_A_HOST = 1 << 20

Ask = Callable[[Sequence[str]], str]
"""Runs a command and returns what it prints."""


class NodeShape(NamedTuple):
    """Cores and GPUs of each host of a CSM allocation."""

    cores: int
    gpus: int
    threads_per_core: int


def in_lsf(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("LSB_JOBID"))


def lsf_allocation(environ: Mapping[str, str], ask: Ask | None = None) -> Allocated | None:
    """The hosts of this LSF job, None outside of one.

    Raises:
        ConfigError: the variables say something that cannot be understood.
        LaunchError: CSM cannot be asked.
    """
    if not in_lsf(environ):
        return None
    source = f"LSF job {environ['LSB_JOBID']}"
    if environ.get("CSM_ALLOCATION_ID"):
        ask = ask or ask_program
        nodes = _nodes(_csm_allocation(environ, ask))
        gpus = _number(_csm_node(nodes[0], ask), "discovered_gpus")
        return Allocated(f"{source} (CSM)", merge_hosts(HostSlots(node, gpus) for node in nodes))
    if path := environ.get("LSB_DJOB_HOSTFILE"):
        return Allocated(source, read_hostfile(path, "LSB_DJOB_HOSTFILE"))
    if words := environ.get("LSB_MCPU_HOSTS", "").split():
        if len(words) % 2:
            raise ConfigError(
                f"LSB_MCPU_HOSTS={environ['LSB_MCPU_HOSTS']} cannot be read. Expected: host slots host slots",
                variable="LSB_MCPU_HOSTS",
            )
        pairs_as_said = f"LSB_MCPU_HOSTS={environ['LSB_MCPU_HOSTS']}"
        pairs = zip(words[::2], words[1::2], strict=True)
        return Allocated(
            source, merge_hosts(HostSlots(name, number_of(count, pairs_as_said)) for name, count in pairs)
        )
    if names := environ.get("LSB_HOSTS", "").split():
        return Allocated(source, merge_hosts(HostSlots(name, 1) for name in names))
    return None


def node_shape(launcher: str, environ: Mapping[str, str], ask: Ask | None = None) -> NodeShape:
    """Cores, GPUs and hardware threads of the hosts of a CSM allocation, all of which are alike, for a
    launcher.

    Raises:
        ConfigError: this is no such allocation.
        LaunchError: CSM cannot be asked.
    """
    if not environ.get("CSM_ALLOCATION_ID"):
        raise ConfigError(
            f"{launcher} needs to know the cores and GPUs of the hosts, and CSM_ALLOCATION_ID is not set. "
            "Say how to place the ranks yourself: --binding-args='--erf_input FILE'.",
            variable="CSM_ALLOCATION_ID",
        )
    ask = ask or ask_program
    allocation = _csm_allocation(environ, ask)
    first = _nodes(allocation)[0]
    node = _csm_node(first, ask)
    isolated = _number(allocation, "isolated_cores") if allocation.get("isolated_cores") else 0
    cores = _number(node, "discovered_cores") - isolated * _number(node, "discovered_sockets")
    if cores < 1:
        raise LaunchError(f"CSM says that host {first} has {cores:.6g} cores for jobs.")
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ForwardAgent=no", "--", first]
    listing = _yaml(ask([*ssh, "LANG=en_US.utf8", "lscpu"]), "lscpu")
    threads = _number(listing, "Thread(s) per core")
    return NodeShape(cores, _number(node, "discovered_gpus"), max(1, threads))


def _nodes(allocation: Mapping[str, Any]) -> list[str]:
    """The hosts, in order."""
    named = allocation["compute_nodes"]
    if not isinstance(named, list) or not all(isinstance(node, str | int) for node in named):
        raise LaunchError("CSM names its compute nodes in a way that is not known. Give the hosts with -H.")
    return sorted(map(str, named))


def _number(said: Mapping[str, Any], name: str) -> int:
    """A number of cores and the like, which may be written as a text."""
    value = said.get(name)
    if isinstance(value, str):
        value = number_of(value, name)
    if type(value) is not int or not 0 <= value < _MOST_OF_A_HOST:
        raise LaunchError(f"CSM says nothing of a host that could be its {name}. Give the hosts with -H.")
    return value


def _csm_allocation(environ: Mapping[str, str], ask: Ask) -> dict[str, Any]:
    command = [f"{_CSM}/csm_allocation_query", "-a", environ["CSM_ALLOCATION_ID"]]
    found = _yaml(ask(command), command[0])
    if not found.get("compute_nodes"):
        raise LaunchError(f"{command[0]} names no compute nodes. Give the hosts with -H.")
    return found


def _csm_node(name: str, ask: Ask) -> dict[str, Any]:
    command = [f"{_CSM}/csm_node_attributes_query", "-n", name]
    record = _yaml(ask(command), command[0]).get("Record_1")
    if not isinstance(record, dict):
        raise LaunchError(f"{command[0]} does not describe host {name}. Give the hosts with -H.")
    return record


def ask_program(command: Sequence[str]) -> str:
    """Run `command` and return what it prints.

    Raises:
        LaunchError: it cannot be run, or fails; names the command and its status.
    """
    said = ask(command, _QUERY_LIMIT_S)
    if said.broken:
        raise LaunchError(f"{' '.join(command)} cannot be run: {said.broken}. Give the hosts with -H.")
    if said.status != 0:
        raise LaunchError(
            f"{' '.join(command)} ended with status {said.status}: {said.stderr.strip()} "
            "Give the hosts with -H."
        )
    return said.stdout


def _yaml(text: str, program: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise LaunchError("Reading what CSM says needs PyYAML: pip install pyyaml") from error
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates and numbers that are none
        raise LaunchError(f"What {program} says cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise LaunchError(f"What {program} says cannot be read: {text[:200]!r}")
    return found
