"""The environment of a worker: what it inherits, and what the launcher sets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from horovod.launch.hosts import Slot

__all__ = ["compute_threads", "job_environment", "slot_environment"]

# Never handed on: shell functions and the shell's last directory mean nothing to a worker, and keys and
# modes of an enclosing job would be mistaken for ours. Patterns match from the start of a name.
_NOT_FORWARDED = re.compile(r"BASH_FUNC_.*|OLDPWD|_HOROVOD_SECRET_KEY|HOROVOD_ELASTIC\Z")
# Names the launching machine's devices, which says nothing about another machine's.
_NOT_FOR_OTHER_HOSTS = re.compile(r".*CUDA_VISIBLE_DEVICES")


def job_environment(
    inherited: Mapping[str, str],
    options: Mapping[str, str],
    *,
    store_address: tuple[str, int],
    secret_key: bytes,
    job_id: str,
    same_host: bool = True,
) -> dict[str, str]:
    """What all workers of a host have in common. `options` win over `inherited`, the job's own over both."""
    environment = {
        name: value
        for name, value in inherited.items()
        if not _NOT_FORWARDED.match(name) and (same_host or not _NOT_FOR_OTHER_HOSTS.match(name))
    }
    host, port = store_address
    return {
        **environment,
        **options,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_SECRET_KEY": secret_key.hex(),
        "HOROVOD_JOB_ID": job_id,
        "PYTHONUNBUFFERED": "1",
    }


def slot_environment(slot: Slot) -> dict[str, str]:
    """What one worker is told about its place; wins over everything else."""
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
