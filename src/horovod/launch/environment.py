"""Environment of workers: variables, inherited or set by the launcher, limits of time, and the directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from horovod.bootstrap.place.store_address import store_environment
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.config import SHORTEST_HEARTBEAT_TIMEOUT_S, Config, value_of
from horovod.errors import ConfigError, LaunchError
from horovod.launch.placement.hosts import Slot

__all__ = [
    "Limits",
    "compute_threads",
    "current_directory",
    "for_other_hosts",
    "interface_environment",
    "job_environment",
    "rank_silence_s",
    "shown_directory",
    "silence_s",
    "slot_environment",
    "start_timeout_s",
    "time_limits",
]

# Never handed on: shell functions and the shell's last directory mean nothing to a worker, and keys and
# stores and modes of an enclosing job would be mistaken for ours. Patterns match from the start of a name.
_NOT_FORWARDED = re.compile(
    r"BASH_FUNC_.*|OLDPWD|_HOROVOD_SECRET_KEY|HOROVOD_(ELASTIC|ELASTIC_WORKER|STORE)\Z"
)
# Names the launching machine's devices, which says nothing about another machine's.
_NOT_FOR_OTHER_HOSTS = re.compile(
    r".*CUDA_VISIBLE_DEVICES|SSH_.*|DBUS_.*|XDG_(RUNTIME_DIR|SESSION_.*|SEAT|VTNR)\Z"
)
# Every host has its own; the launching machine's serve only where a host has none.
_OF_A_HOST = frozenset({"HOME", "HOSTNAME", "LOGNAME", "MAIL", "SHELL", "TMPDIR", "USER"})
_DEFAULT_START_TIMEOUT_S = 30.0
# Of the time after which a silent rank is lost: ranks know first and say more, and ssh, whose connections are
# its own, sends again later and later after a loss.
_SILENCES = 2


def job_environment(
    inherited: Mapping[str, str],
    options: Mapping[str, str],
    *,
    store: Sequence[tuple[str, int]],
    secret_key: bytes | None,
    job_id: str,
    same_host: bool = True,
) -> dict[str, str]:
    """Environment that all workers of a host have in common. `options` win over `inherited`, the job's own
    variables over both. Without `secret_key` it holds no key, not even an inherited one. `store`: every
    address of the store.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if name != SECRET_VARIABLE
        and not _NOT_FORWARDED.match(name)
        and (same_host or not _NOT_FOR_OTHER_HOSTS.match(name))
    }
    return {
        **environment,
        **options,
        **store_environment(store),
        "HOROVOD_CONTROLLER": "gloo",
        # A backend of the user's own is for all ranks alike.
        "HOROVOD_CPU_OPERATIONS": environment.get("HOROVOD_CPU_OPERATIONS") or "gloo",
        **({SECRET_VARIABLE: secret_key.hex()} if secret_key is not None else {}),
        "HOROVOD_JOB_ID": job_id,
        "PYTHONUNBUFFERED": "1",
    }


def for_other_hosts(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide a job's environment for ranks of other hosts: variables that are set there, and variables that
    are set only if the host has none of its own.
    """
    forwarded = {name: value for name, value in environment.items() if not _NOT_FOR_OTHER_HOSTS.match(name)}
    defaults = {name: forwarded.pop(name) for name in _OF_A_HOST & set(forwarded)}
    return forwarded, defaults


def interface_environment(interfaces: Sequence[str]) -> dict[str, str]:
    """Variables for ranks that may use only these interfaces (or subnets, ``10.0.0.0/8``); none if empty."""
    if not interfaces:
        return {}
    variables = {"HOROVOD_GLOO_IFACE": ",".join(interfaces)}
    names = [name for name in interfaces if "/" not in name]  # NCCL knows no subnets
    return {**variables, "NCCL_SOCKET_IFNAME": ",".join(names)} if names else variables


def start_timeout_s(options: Mapping[str, str], inherited: Mapping[str, str]) -> float:
    """Seconds that hosts and ranks may take to be found.

    Raises:
        ConfigError: it is not a number.
    """
    variable = "HOROVOD_START_TIMEOUT"
    text = options.get(variable) or inherited.get(variable)
    try:
        return float(text or 0) or _DEFAULT_START_TIMEOUT_S
    except ValueError:
        raise ConfigError(f"{variable}={text} is not a number of seconds.", variable=variable) from None


def rank_silence_s(options: Mapping[str, str], inherited: Mapping[str, str]) -> float:
    """Seconds without a sign of life after which a rank is lost for the others; 0: never. Every other
    limit on silence follows from it.

    Raises:
        ConfigError: it is not a number.
    """
    given_s: float = value_of("heartbeat_timeout_s", {**inherited, **options})
    return max(given_s, SHORTEST_HEARTBEAT_TIMEOUT_S) if given_s else 0.0


def silence_s(options: Mapping[str, str], inherited: Mapping[str, str]) -> float:
    """Seconds without a sign of life after which a host is lost for its launcher, and a launcher for its
    hosts: twice as many as ranks give each other. There is a limit even if ranks wait for ever, as for a
    debugger: nobody holds the processes of the launcher.

    Raises:
        ConfigError: it is not a number.
    """
    return _SILENCES * (rank_silence_s(options, inherited) or Config.heartbeat_timeout_s)


class Limits(NamedTuple):
    """Seconds that hosts and ranks may take to start, may be silent, and may take to end by themselves when a
    rank has failed.
    """

    start_s: float
    silence_s: float
    patience_s: float


def time_limits(options: Mapping[str, str], inherited: Mapping[str, str]) -> Limits:
    """Time limits of a job.

    Raises:
        ConfigError: one makes no sense.
    """
    patience_s: float = value_of("failure_patience_s", {**inherited, **options})
    return Limits(start_timeout_s(options, inherited), silence_s(options, inherited), patience_s)


def slot_environment(slot: Slot) -> dict[str, str]:
    """Variables that tell one worker its place; they win over everything else."""
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }


def compute_threads(inherited: Mapping[str, str], processes_here: int, cores: int) -> int | None:
    """Compute threads per rank to ask for (``OMP_NUM_THREADS``), or None to leave the choice alone.

    A framework uses every core unless told otherwise; several ranks doing so on one machine slow each other
    down many times over. So the cores are shared out, unless the user has decided.
    """
    if processes_here < 2 or "OMP_NUM_THREADS" in inherited:
        return None
    return max(1, cores // processes_here)


def current_directory() -> str:
    """Path of the directory that this process is in.

    Raises:
        LaunchError: it was deleted, or may not be read.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"The current directory, in which ranks would work, cannot be found ({error.strerror}): was it "
            "deleted? Change to another one, and start again."
        ) from error


def shown_directory() -> str:
    """Path of the current directory for a message, whatever has become of it."""
    try:
        return os.getcwd()
    except OSError:
        return "like that of this launcher, which has been deleted"
