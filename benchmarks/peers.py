"""The libraries that are compared, each started by itself: how a rank of a benchmark joins its job."""

import os
from collections.abc import Callable

from horovod.bench.mpi import MpiPeer
from horovod.bench.peers import Gloo, Limit, Peer, Rueda

__all__ = ["NAMES", "Peer", "create"]

NAMES = ("rueda", "gloo", "openmpi", "limit")


def create(name: str) -> Peer:
    """Join the job with library `name` (one of `NAMES`).

    Raises:
        ValueError: no such peer.
    """
    kinds: dict[str, Callable[[], Peer]] = {
        "rueda": Rueda,
        "gloo": Gloo,
        "openmpi": MpiPeer,
        "limit": lambda: Limit(Gloo()),
    }
    if name not in kinds:
        raise ValueError(f"unknown peer {name!r}: choose from {', '.join(NAMES)}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    return kinds[name]()
