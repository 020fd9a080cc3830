"""A world, as this process sees it, and who follows it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from horovod.bootstrap.mesh.agreement import wrong_ranks
from horovod.bootstrap.mesh.late_connections import LateConnections
from horovod.bootstrap.place.control_groups import available_bytes
from horovod.bootstrap.place.topology import Topology
from horovod.bootstrap.store.meeting import Meeting
from horovod.bootstrap.trust.signing import ObjectSigner
from horovod.config import Config

if TYPE_CHECKING:
    from horovod import _core


class Core(Protocol):
    """The part of the native module ``horovod._core`` that is used here; tests replace it."""

    Engine: Any

    def segment_bytes(self, local_size: int) -> int: ...

    def segment_base_bytes(self, local_size: int) -> int: ...

    def missing_cipher(self) -> str: ...


class Numbered(Protocol):
    """A process set that has a number in the current world."""

    process_set_id: int | None


class Sharing(Protocol):
    """An owner of tensors in memory that the ranks of a host share."""

    def leave(self) -> None:
        """The world has ended: move the tensors to private memory."""


class Follower(Protocol):
    """Native code that keeps a reference to the engine, instead of asking this module each time."""

    def enter(self, runtime: Runtime) -> None:
        """A world was formed."""

    def leave(self) -> None:
        """The world has ended. On return, nothing uses its engine any more."""


@dataclass
class Joins:
    """Number of times that all ranks of a world have joined: a moment that they share."""

    count: int = 0


@dataclass(frozen=True, eq=False)
class Runtime:
    """One world, as seen by this process. ``numbered``: the process sets whose number ends with it.
    ``sharing``: whoever must leave shared memory before other ranks form the next one. ``groups``: ranks that
    share memory. ``cores_per_rank``: of this machine, for its ranks.
    ``signer``: of objects that ranks send each other.
    ``backend``: the class that moves the bytes; None: the engine does. ``communicator``: of MPI, that
    ``init`` was given. ``late``: makes the connections that the world was formed without.
    ``joins``: of all ranks so far.
    """

    engine: _core.Engine
    topology: Topology
    config: Config
    meeting: Meeting | None = None
    groups: Sequence[Sequence[int]] = ()
    cores_per_rank: float = math.inf
    backend: Any = None
    communicator: Any = None
    late: LateConnections | None = None
    signer: ObjectSigner = field(default_factory=lambda: ObjectSigner(b"", b""))
    numbered: weakref.WeakSet[Numbered] = field(default_factory=weakref.WeakSet)
    sharing: weakref.WeakSet[Sharing] = field(default_factory=weakref.WeakSet)

    joins: Joins = field(default_factory=Joins)

    @property
    def alone(self) -> bool:
        """True if there is nobody to exchange with, now or later: an elastic world may grow."""
        return self.topology.size == 1 and not self.config.elastic

    def wrong_ranks(self, ranks: Sequence[int]) -> str:
        """Say what is wrong with ``ranks`` (ascending) as a process set; empty if nothing is."""
        return wrong_ranks(ranks, self.topology.size)

    def share_memory(self, ranks: Sequence[int] | None) -> bool:
        """Return whether all of ``ranks`` (None: everybody) share memory with each other."""
        if self.backend is not None:
            return False  # a backend in Python cannot use shared memory
        if ranks is None:
            return len(self.groups) == 1
        return any(set(ranks) <= set(group) for group in self.groups)

    def has_room_for(self, memory_bytes: int) -> bool:
        """Return whether this machine can give so much memory before the kernel has to end processes."""
        left = available_bytes()
        return left is None or left > memory_bytes
