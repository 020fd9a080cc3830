"""The libraries that are compared, each started by itself: how a rank of a benchmark joins its job."""

import os
from collections.abc import Callable

from benchmarks.wire import Wire

from horovod.bench.mpi import MpiPeer
from horovod.bench.peers import Farandole, Gloo, Limit, Peer

__all__ = ["BETWEEN_HOSTS", "NAMES", "Peer", "create"]

NAMES = ("farandole", "gloo", "openmpi", "limit")
"""On one host."""

BETWEEN_HOSTS = ("farandole", "gloo", "openmpi", "wire")


def create(name: str) -> Peer:
    """Join the job with library `name` (one of `NAMES` or `BETWEEN_HOSTS`).

    Raises:
        ValueError: no such peer.
    """
    kinds: dict[str, Callable[[], Peer]] = {
        "farandole": Farandole,
        "gloo": Gloo,
        "openmpi": MpiPeer,
        "limit": lambda: Limit(Gloo()),
        "wire": lambda: Wire(Gloo()),
    }
    if name not in kinds:
        raise ValueError(f"unknown peer {name!r}: choose from {', '.join(kinds)}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    return kinds[name]()
