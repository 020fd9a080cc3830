"""Parts for a launcher of the user's own: the server where ranks meet, and the ranks' variables."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from horovod.bootstrap.place.store_address import store_environment
from horovod.bootstrap.store.membership import WORKER_VARIABLE
from horovod.launch.environment import interface_environment, slot_environment
from horovod.runner.http.http_server import RendezvousServer

__all__ = ["RendezvousServer", "create_run_env_vars", "create_slot_env_vars"]


def create_slot_env_vars(slot_info: Any) -> dict[str, str]:
    """The variables that say who a rank is.

    Args:
        slot_info: one of ``get_host_assignments``, or one that ``ElasticDriver`` has given.
    """
    worker = getattr(slot_info, "worker", None)
    return {**slot_environment(slot_info), **({} if worker is None else {WORKER_VARIABLE: str(worker)})}


def create_run_env_vars(
    server_ip: str, nics: Collection[str], port: int, elastic: bool = False
) -> dict[str, str]:
    """The variables that say to all ranks where they meet.

    Args:
        server_ip: an address of the host where the ``RendezvousServer`` is started, as the ranks know it.
        nics: names of the interfaces that ranks may use, or one name; empty: all.
        port: that ``RendezvousServer.start`` returned.
        elastic: an ``ElasticDriver`` decides who is in the world.
    """
    return {
        **({"HOROVOD_ELASTIC": "1"} if elastic else {}),
        **store_environment([(server_ip, port)]),
        **interface_environment([nics] if isinstance(nics, str) else sorted(nics)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
