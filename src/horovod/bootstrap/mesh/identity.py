"""Identities that the ranks leave in the store, and conclusions from those of all ranks."""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Sequence
from typing import Any

from horovod.bootstrap.mesh.agreement import Sets
from horovod.bootstrap.network import listening as network
from horovod.bootstrap.network.groups import Machine
from horovod.bootstrap.place.cores import Share, cores_per_rank, fewest_cores_per_rank, own_share
from horovod.bootstrap.place.topology import RankPlace
from horovod.config import Config

__all__ = ["cores_of", "own_identity", "place_in", "segment_limit"]

_PAGE_BYTES = 4096
"""The parts of a segment are multiples of it (``core/transport/shm_layout.h``)."""


def own_identity(
    place: RankPlace,
    config: Config,
    process_sets: Sets,
    missing_cipher: str,
    unix_name: str,
    store_route: str,
) -> dict[str, Any]:
    """Of this process. ``store_route``: the address of this host by which it reaches the store."""
    boot_id, net_namespace = network.namespace()
    machine = Machine(
        boot_id=boot_id,
        net_namespace=net_namespace,
        uid=os.getuid(),
        host=place.host,
        mode=config.transport_groups,
    )
    said = dataclasses.asdict(place)
    share = own_share()
    return {
        "place": {name: said[name] for name in ("launcher", "size", "local", "cross", "host")},
        "machine": dataclasses.asdict(machine),
        "pid": os.getpid(),
        "addresses": network.own_hosts(place, config, store_route),
        "streams": config.network_streams,
        "connect_all": config.network_connect_all,
        "protection": config.network_protection,
        "missing_cipher": missing_cipher,
        "unix": unix_name,
        "process_sets": [list(ranks) for ranks in process_sets],
        "operations": config.cpu_operations,
        "cores": hex(share.cores),
        "quota": share.quota,
        "file_limit": _file_limit(),
    }


def place_in(rank: int, identity: dict[str, Any]) -> RankPlace:
    """The place that rank ``rank`` was given, without the store."""
    said = identity["place"]
    pairs = {
        name: None if said[name] is None else (said[name][0], said[name][1]) for name in ("local", "cross")
    }
    return RankPlace(said["launcher"], rank, said["size"], pairs["local"], pairs["cross"], said["host"])


def cores_of(rank: int, identities: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Cores of its machine for each rank there; and the same of the machine of the world with the fewest."""
    shares = [Share(int(identity["cores"], 16), identity["quota"]) for identity in identities]
    machines = [identity["machine"]["boot_id"] for identity in identities]
    return cores_per_rank(rank, shares, machines), fewest_cores_per_rank(shares, machines)


def segment_limit(identities: Sequence[dict[str, Any]]) -> int | None:
    """The lowest limit on files in the world, in whole pages; None: there is none. All use the same: members
    of a process set on several hosts must have its memory on all of them, or on none.
    """
    limits = [identity["file_limit"] for identity in identities]
    lowest = min((limit for limit in limits if limit is not None), default=None)
    return None if lowest is None else lowest // _PAGE_BYTES * _PAGE_BYTES


def _file_limit() -> int | None:
    """Bytes that a file of this process may have (``ulimit -f``); None: as many as there are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft
