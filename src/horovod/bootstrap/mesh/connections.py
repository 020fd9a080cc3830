"""The connections of a rank to all others, until its engine takes them over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from horovod.bootstrap.mesh.late_connections import LateConnections
from horovod.bootstrap.mesh.local import LocalPeer, Own
from horovod.bootstrap.place.descriptors import Descriptors
from horovod.bootstrap.trust.protection import Sealed

__all__ = ["Mesh", "NetworkPeer", "Receiver"]


class Receiver(Protocol):
    """Owner of the connections once they are made: the engine. Each call owns its descriptors, also when it
    raises.
    """

    def own_segment(self, memfd: int, engine_bell: int, waiter_bell: int) -> None: ...
    def add_local_peer(
        self, rank: int, memfd: int, engine_bell: int, waiter_bell: int, pidfd: int, liveness: int
    ) -> None: ...
    def add_network_peer(
        self, rank: int, control: int, data: list[int], protection: int, keys: list[bytes]
    ) -> None: ...
    def add_absent_peer(self, rank: int, streams: int) -> None: ...


@dataclass(frozen=True)
class NetworkPeer:
    """Authenticated TCP sockets to a rank of another group; ``control`` is -1 without an edge of the
    control tree.
    """

    rank: int
    control: int
    data: list[int]
    sealed: Sealed = field(default_factory=Sealed)


@dataclass
class Mesh:
    """The connections of one rank. They are closed by ``close`` unless ``hand_over`` has given them away."""

    groups: list[list[int]]
    own: Own | None
    local_peers: list[LocalPeer]
    network_peers: list[NetworkPeer]
    owner: Descriptors = field(default_factory=Descriptors)
    process_sets: list[list[int]] = field(default_factory=list)
    cores_per_rank: float = 1.0
    """Of this machine, for its ranks."""
    fewest_cores_per_rank: float = 1.0
    """Of the machine of the world that has the fewest for its ranks."""
    world: bytes = b""
    """Digest that stands for this round of the job."""
    segment_limit_bytes: int | None = None
    """No rank of the world makes a larger segment; None: as large as they are by their layout."""
    late: LateConnections | None = None
    """Maker of the connections that were left out; whoever forms the world starts and closes it."""

    def hand_over(self, engine: Receiver) -> None:
        """Give every descriptor to ``engine``. If it refuses one, those that it has not been given are
        closed.
        """
        release = self.owner.release
        try:
            if self.own is not None:
                own = self.own
                engine.own_segment(release(own.memfd), release(own.engine_bell), release(own.waiter_bell))
            for peer in self.local_peers:
                engine.add_local_peer(
                    peer.rank,
                    release(peer.memfd),
                    release(peer.engine_bell),
                    release(peer.waiter_bell),
                    release(peer.pidfd),
                    release(peer.liveness),
                )
            for other in self.network_peers:
                engine.add_network_peer(
                    other.rank,
                    release(other.control),
                    [release(fd) for fd in other.data],
                    other.sealed.level,
                    list(other.sealed.keys),
                )
            if self.late is not None:
                for rank, purposes in self.late.wanted.items():
                    engine.add_absent_peer(rank, len(purposes))
        finally:
            self.close()

    def close(self) -> None:
        """Close what has not been handed over. Idempotent."""
        self.owner.close()
