"""Places of ranks on Ray's nodes, and the store of their job, where all meet."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Collection, Mapping
from typing import Any

import ray

from horovod.bootstrap.place.launchers import OWN
from horovod.bootstrap.store.rounds import ROUNDS
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.bootstrap.trust.secret import KEY_BYTES
from horovod.errors import LaunchError
from horovod.launch.calls.functions import interface_names
from horovod.launch.environment import interface_environment, job_environment
from horovod.launch.placement.addresses import store_hosts
from horovod.ray.settings import MiniSettings

__all__ = ["Coordinator", "forwarded"]

_FORWARDED = ("HOROVOD_", "NCCL_")
_OF_A_PLACE = frozenset(
    {OWN.rank, *OWN.sizes, OWN.local_rank, OWN.local_size, OWN.cross_rank, OWN.cross_size, OWN.hostname}
)
_JOB_ID_BYTES = 8


class Coordinator:
    """Places ranks, and serves the store where they meet.

    A node of Ray is a host: several on one machine count as several.

    Args:
        settings: a :class:`MiniSettings`, or what has its ``nics`` and ``timeout_s``.
    """

    def __init__(self, settings: MiniSettings | Any) -> None:
        self.settings = settings
        self._nodes: dict[str, list[int]] = {}
        self._hostnames: dict[str, str] = {}  # by node
        self._store: StoreServer | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks that are registered."""
        return sum(map(len, self._nodes.values()))

    @property
    def hostnames(self) -> set[str]:
        """Of the nodes; several may have the same."""
        return set(self._hostnames.values())

    @property
    def node_id_string(self) -> str:
        """``node:ranks,node:ranks``."""
        return ",".join(f"{node}:{len(ranks)}" for node, ranks in self._nodes.items())

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """A rank is on a node. The order of calls is that of the local ranks."""
        self._hostnames.setdefault(node_id, hostname)
        self._nodes.setdefault(node_id, []).append(world_rank)

    def finalize_registration(self) -> dict[int, dict[str, int]]:
        """The places of all ranks: by rank, the numbers of ``HOROVOD_LOCAL_RANK``, ``HOROVOD_LOCAL_SIZE``,
        ``HOROVOD_CROSS_RANK`` and ``HOROVOD_CROSS_SIZE``.
        """
        across: dict[int, list[str]] = {}
        for node, ranks in self._nodes.items():
            for local_rank in range(len(ranks)):
                across.setdefault(local_rank, []).append(node)
        return {
            rank: {
                OWN.cross_rank: across[local_rank].index(node),
                OWN.cross_size: len(across[local_rank]),
                OWN.local_rank: local_rank,
                OWN.local_size: len(ranks),
            }
            for node, ranks in self._nodes.items()
            for local_rank, rank in enumerate(ranks)
        }

    def establish_rendezvous(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Begin to serve the store, under a new key. It is served until :meth:`close`, or as long as this
        object is there.

        Args:
            inherited: settings that ranks shall have, too; by default those of this process.

        Returns:
            The variables for all ranks, with the key in them.

        Raises:
            LaunchError: this machine has no address that others could reach.
        """
        self.close()
        nics = interface_names(self.settings.nics)
        key, job = secrets.token_bytes(KEY_BYTES), secrets.token_hex(_JOB_ID_BYTES)
        hosts = store_hosts(nics, [ray.util.get_node_ip_address()])
        try:
            store = StoreServer(key, hosts, job=job)
        except OSError as error:
            raise LaunchError(f"The ranks' store cannot be served on {', '.join(hosts)}: {error}") from error
        store.start()
        self._store = store
        self._stop = weakref.finalize(self, store.stop)
        return job_environment(
            forwarded(os.environ) if inherited is None else inherited,
            {**interface_environment(nics), "HOROVOD_START_TIMEOUT": f"{self.settings.timeout_s:g}"},
            store=store.addresses,
            secret_key=key,
            job_id=job,
        )

    def lost(self, rank: int, host: str, why: str) -> None:
        """Nobody shall wait for this rank any more in ``hvd.init()``."""
        if self._store is not None:
            text = f"Rank {rank} on node {host} {why}. No world can be formed without it."
            self._store.fail(ROUNDS, Cause(text, (rank,), rank=rank, host=host))

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._store is not None:
            self._store = None
            self._stop()


def forwarded(environ: Mapping[str, str], but: Collection[str] = _OF_A_PLACE) -> dict[str, str]:
    """Settings of this process that the ranks shall have, too: not those of its own place."""
    return {name: value for name, value in environ.items() if name.startswith(_FORWARDED) and name not in but}
