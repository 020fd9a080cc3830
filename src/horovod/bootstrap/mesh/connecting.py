"""Connecting all ranks: meet at the store, share memory where that is possible, dial the others.

    1. Claim this rank in the current round of the job and leave an identity, with the process sets that this
       rank was given; take everybody's in one reply.
    2. Ranks that look as if they could share memory pass descriptors to each other. If one pair of a group
       fails, the group is dissolved; all ranks learn the outcomes through the store, so all know the same
       groups.
    3. Ranks of different groups connect over TCP: the lower rank listens on interfaces that lead to those
       that dial it, and says where; the higher rank dials. In large worlds most pairs wait until an operation
       needs them (``late_connections.py``).
    4. Each gives the connections to its engine, which maps what it shares and takes its memory.
    5. When all have said that they are done, the world is formed: for all ranks or for none.

One deadline covers everything. A rank that fails tells all that wait the reason, through the store; the store
notices a rank that dies. What users see of the world (``Topology``) never depends on which transport was
possible.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from horovod.bootstrap.mesh import local
from horovod.bootstrap.mesh.agreement import Sets, agree_on_operations, agree_on_sets
from horovod.bootstrap.mesh.connections import Mesh, NetworkPeer
from horovod.bootstrap.mesh.identity import cores_of, own_identity, place_in, segment_limit
from horovod.bootstrap.mesh.late_connections import LateConnections
from horovod.bootstrap.mesh.local import LocalPeer, Own
from horovod.bootstrap.mesh.others import Others
from horovod.bootstrap.network import listening as network
from horovod.bootstrap.network.groups import Machine, candidate_groups, split
from horovod.bootstrap.network.routes import Race, Route
from horovod.bootstrap.place.descriptors import Descriptors, make_room
from horovod.bootstrap.place.topology import RankPlace, Topology, agree
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.rounds import Round, claim_round, planned_epoch
from horovod.bootstrap.store.table import Cause
from horovod.bootstrap.trust.admission import HANDSHAKE_LIMIT_S, MORE_STRANGERS, Admission
from horovod.bootstrap.trust.conversation import Conversation, Conversations, dial
from horovod.bootstrap.trust.handshake import Purpose, Role, world_digest
from horovod.bootstrap.trust.protection import Sealed, key_of, number_of
from horovod.bootstrap.trust.session import Session
from horovod.config import Config
from horovod.errors import (
    AuthenticationError,
    BackendError,
    HorovodError,
    HorovodInternalError,
    InvalidArgumentError,
    RendezvousError,
    StoreTimeout,
)

__all__ = ["connect"]

_log = logging.getLogger("horovod.bootstrap")

_MOST_CHARACTERS = 400  # of what a script has given to sys.exit()

_WORD_S = 1.0
"""Lead of ranks that wait for one rank: they give up so much earlier than those that wait for all, and tell
them.
"""

_CAUSE_S = 0.2
"""A rank that cannot be reached may have died: the store says so in a moment."""

_LATE_SHARE = 0.9
"""Part of the operation timeout that making a connection may take."""


Prepare = Callable[[Topology, Mesh], None]


def _nothing(topology: Topology, mesh: Mesh) -> None:
    pass


def connect(
    place: RankPlace,
    config: Config,
    key: bytes,
    segment_bytes: Callable[[int], int],
    process_sets: Sets = (),
    segment_base_bytes: Callable[[int], int] | None = None,
    missing_cipher: str = "",
    prepare: Prepare = _nothing,
) -> tuple[Topology, Mesh]:
    """Form the world: blocks until this rank is connected with all others.

    Args:
        place: who this process is; ``place.store`` says where to meet.
        config: time limit, interface, transport groups, job and epoch.
        key: the key of the job.
        segment_bytes: size of the segment that each rank of a group of that many makes, if no rank of the
            world has a lower limit on files.
        process_sets: the static process sets, as this rank was given them; see ``static_sets``.
        segment_base_bytes: how much of it needs memory from the start; by default all.
        missing_cipher: why this process cannot protect connections; empty if it can.
        prepare: is called when this rank is connected, before anybody goes on. What it raises is told to all
            ranks, and fails the attempt of all.

    Raises:
        RendezvousError: ranks are missing, unreachable or gone, or one of them failed; the message says
        which. ConfigError: the ranks contradict each other.
        InvalidArgumentError: a process set is wrong, or they differ; raised on every rank.
        BackendError: not enough memory.
    """
    assert place.store
    deadline = time.monotonic() + config.init_timeout_s
    me = f"rank {place.rank} on host {place.host}"
    job = place.job or config.job_id
    with StoreClient(place.store, key, config.init_timeout_s, me, job=job) as store:
        sizes = (segment_bytes, segment_base_bytes or segment_bytes)
        attempt = _Bootstrap(place, config, key, sizes, process_sets, missing_cipher, store, deadline)
        return attempt.run(prepare)


class _Bootstrap:
    """One attempt of one rank to join one round."""

    def __init__(
        self,
        place: RankPlace,
        config: Config,
        key: bytes,
        segment_sizes: tuple[Callable[[int], int], Callable[[int], int]],
        process_sets: Sets,
        missing_cipher: str,
        store: StoreClient,
        deadline: float,
    ) -> None:
        self.place = place
        self.config = config
        self.key = key
        self.segment_bytes, self.segment_base_bytes = segment_sizes
        self.process_sets = process_sets
        self.missing_cipher = missing_cipher
        self.store = store
        self.deadline = deadline
        self.owner = Descriptors()
        self.identities: list[dict[str, Any]] = []
        self.hosts: tuple[str, ...] = ()
        self.others = Others(place.rank, config, ())
        self.late: LateConnections | None = None
        self.world = b""

    def run(self, prepare: Prepare) -> tuple[Topology, Mesh]:
        unix_listener, unix_name = local.listen()
        with unix_listener:
            identity = own_identity(
                self.place,
                self.config,
                self.process_sets,
                self.missing_cipher,
                unix_name,
                self.store.local_host(),
            )
            epoch = planned_epoch(self.store, self.config.epoch, self.place)
            joined = claim_round(self.store, epoch, self.place, identity)
            try:
                return self._join(joined, unix_listener, prepare)
            except InvalidArgumentError:
                # The same on every rank, each of which finds out by itself: aborting the round would give
                # another error to those that have not looked yet.
                self._let_go()
                self._leave(joined)
                raise
            except BaseException as error:
                self._let_go()
                first = self._tell(joined, error)
                if type(error) is RendezvousError and first is not None and first.text != str(error):
                    raise first.error() from error
                if isinstance(error, OSError):
                    raise BackendError(
                        f"{self._me()}: {error}", library="system", code=error.errno
                    ) from error
                raise

    def _let_go(self) -> None:
        self.owner.close()
        if self.late is not None:
            self.late.close()

    def _join(self, joined: Round, unix_listener: socket.socket, prepare: Prepare) -> tuple[Topology, Mesh]:
        self.store.watch(joined.scope, self.place.rank, self.place.host)
        self.world = world_digest(self.place.job or self.config.job_id, joined.scope)
        self.identities = self._collect_identities(joined)
        places = [place_in(rank, identity) for rank, identity in enumerate(self.identities)]
        self.hosts = tuple(place.host for place in places)
        self.others = Others(self.place.rank, self.config, self.identities)
        machines = [identity["machine"]["boot_id"] for identity in self.identities]
        topology = agree(self.place.rank, places, machines)
        agree_on_operations([identity["operations"] for identity in self.identities])
        process_sets = agree_on_sets([identity["process_sets"] for identity in self.identities])
        groups, own, local_peers = self._share_memory(joined, unix_listener)
        network_peers = self._connect_network(joined, groups)
        mesh = Mesh(
            groups,
            own,
            local_peers,
            network_peers,
            self.owner,
            process_sets,
            *cores_of(self.place.rank, self.identities),
            self.world,
            segment_limit(self.identities),
            self.late,
        )
        prepare(topology, mesh)
        # No rank goes on in a world that another rank could not enter.
        self._gather(joined.connected, "", "finish connecting", usual="")
        self._leave(joined)
        return topology, mesh

    # -- 1. meeting --

    def _collect_identities(self, joined: Round) -> list[dict[str, Any]]:
        size = self.place.size
        try:
            book = self.store.collect(joined.identities, size, self._left_s())
        except StoreTimeout as error:
            missing = tuple(int(key.removeprefix(joined.identities)) for key in error.keys)
            raise RendezvousError(
                f"{_ranks(missing)} of {size} did not call hvd.init() within "
                f"{self.config.init_timeout_s:g} s. Look for an error in the output of the missing ranks; "
                "if they are only slow to start, raise HOROVOD_START_TIMEOUT (seconds).",
                missing=missing,
                waited_s=self.config.init_timeout_s,
            ) from error
        return [book[str(rank)] for rank in range(size)]

    # -- 2. sharing memory --

    def _share_memory(
        self, joined: Round, listener: socket.socket
    ) -> tuple[list[list[int]], Own | None, list[LocalPeer]]:
        machines = [Machine(**identity["machine"]) for identity in self.identities]
        groups = candidate_groups(machines)
        self._make_room(groups)
        if all(len(group) == 1 for group in groups):
            return groups, None, []
        mine = next(group for group in groups if self.place.rank in group)
        own: Own | None = None
        peers: list[LocalPeer] = []
        failure = ""
        if len(mine) > 1:
            try:
                size, base = self._segment_size(len(mine))
                own = local.make_own(size, self.owner, base)
                peers = self._pass_descriptors(joined, mine, own, listener)
            except _NotSharable as error:
                failure = str(error)
            except (OSError, AuthenticationError) as error:
                failure = f"{self._me()}: {error}"
                self.store.abort(joined.group(mine[0]), Cause(failure))
        outcomes = self._gather(joined.outcomes, failure, "pass descriptors", usual="")
        failed = {rank: reason for rank, reason in enumerate(outcomes) if reason}
        if failed.keys() & set(mine):
            if self.place.rank == mine[0]:
                _log.warning(
                    "Ranks %s cannot share memory and will use TCP: %s",
                    ", ".join(map(str, mine)),
                    failed[min(failed.keys() & set(mine))],
                )
            self.owner.close()
            own, peers = None, []
        return split(groups, failed), own, sorted(peers, key=lambda peer: peer.rank)

    def _segment_size(self, local_size: int) -> tuple[int, int]:
        """Bytes of a segment, and how many of them get memory now. Below a limit on files its end is left
        out, down to what is needed from the start.
        """
        size, base = self.segment_bytes(local_size), self.segment_base_bytes(local_size)
        limit = segment_limit(self.identities)
        return size if limit is None else max(base, min(size, limit)), base

    def _pass_descriptors(
        self, joined: Round, group: Sequence[int], own: Own, listener: socket.socket
    ) -> list[LocalPeer]:
        """Exchange with every other rank of the group. Raises ``_NotSharable`` if another rank says it is
        no use.
        """
        rank, scope = self.place.rank, joined.group(group[0])
        peers: dict[int, LocalPeer] = {}
        expected = {Purpose(Role.LOCAL, other, rank, world=self.world) for other in group if other > rank}

        def swap(connection: socket.socket, other: int, session: Session) -> Conversation[None]:
            peers[other] = yield from local.exchange(connection, session, other, own, self.owner)

        def call(other: int) -> Conversation[None]:
            purpose = Purpose(Role.LOCAL, rank, other, world=self.world)
            name = "\0" + self.identities[other]["unix"]
            try:
                connection, session = yield from dial(socket.AF_UNIX, name, self.key, purpose)
                yield from swap(connection, other, session)
            except (OSError, AuthenticationError) as error:
                raise OSError(f"no descriptors from rank {other}: {error}") from error

        def answer(connection: socket.socket, purpose: Purpose, session: Session) -> Conversation[None]:
            yield from swap(connection, purpose.dialer, session)

        with Conversations() as talks:
            talks.start(self._watch(joined, scope))
            admission = Admission(talks, self.key, expected, answer, self._me())
            admission.start([listener])
            for other in group:
                if other < rank:
                    talks.start(call(other))
            formed = talks.run(lambda: len(peers) == len(group) - 1, self._talk_until())
            admission.refusals.tell()
            if not formed:
                raise self._late("pass descriptors", (r for r in group if r != rank and r not in peers))
        return list(peers.values())

    # -- 3. connecting --

    def _connect_network(self, joined: Round, groups: Sequence[Sequence[int]]) -> list[NetworkPeer]:
        rank = self.place.rank
        wanted, late = self._connections(groups)
        levels = self.others.levels({p.dialer + p.acceptor - rank for p in wanted})
        if not wanted and not late:
            return []
        with contextlib.ExitStack() as closing:
            listeners = self.others.listen({p.dialer for p in (*wanted, *late) if p.acceptor == rank})
            for listener in listeners:
                closing.enter_context(listener)
            here = [listener.getsockname()[:2] for listener in listeners]
            offered = self._gather(joined.listening, here, "connect", usual=[])
            made, sessions = self._dial_and_accept(joined, wanted, listeners, offered)
            if late:
                limit_s = _LATE_SHARE * self.config.operation_timeout_s
                self.late = LateConnections(rank, late, listeners, offered, self.others, self.key, limit_s)
                closing.pop_all()
        return self._network_peers(wanted, made, sessions, levels)

    def _connections(self, groups: Sequence[Sequence[int]]) -> tuple[list[Purpose], list[Purpose]]:
        """To ranks of other groups: those to make now, and those to make when they are needed."""
        streams = self.others.agreed("streams", "HOROVOD_NETWORK_STREAMS")
        connect_all = self.others.agreed("connect_all", "HOROVOD_NETWORK_CONNECT_ALL")
        return network.connections_of(self.place.rank, groups, self.world, streams, connect_all)

    def _dial_and_accept(
        self,
        joined: Round,
        wanted: Sequence[Purpose],
        listeners: Sequence[socket.socket],
        offered: Sequence[Sequence[tuple[str, int]]],
    ) -> tuple[dict[Purpose, int], dict[Purpose, Session]]:
        rank = self.place.rank
        made: dict[Purpose, int] = {}
        sessions: dict[Purpose, Session] = {}

        def keep(connection: socket.socket, purpose: Purpose, session: Session) -> None:
            made[purpose] = self.owner.adopt(connection.detach())
            sessions[purpose] = session

        def answer(connection: socket.socket, purpose: Purpose, session: Session) -> Conversation[None]:
            keep(connection, purpose, session)
            yield from ()

        def race(talks: Conversations, purpose: Purpose) -> Race:
            routes = self.others.routes(purpose.acceptor, offered[purpose.acceptor])

            def give_up() -> Conversation[None]:
                yield _CAUSE_S
                text = self.others.unreachable(purpose.acceptor, running.describe())
                raise RendezvousError(text, missing=(purpose.acceptor,))

            def lost() -> None:
                talks.start(give_up())

            def won(connection: socket.socket, _: Route, session: Session) -> None:
                keep(connection, purpose, session)

            running = Race(talks, routes, self.key, purpose, won, lost)
            return running

        with Conversations() as talks:
            talks.start(self._watch(joined, None))
            expected = (purpose for purpose in wanted if purpose.acceptor == rank)
            # Where hundreds of ranks share a core, a handshake takes as long as all of it may.
            limit_s = max(HANDSHAKE_LIMIT_S, self.config.init_timeout_s)
            admission = Admission(talks, self.key, expected, answer, self._me(), limit_s)
            admission.start(listeners)
            races = {purpose: race(talks, purpose) for purpose in wanted if purpose.dialer == rank}
            for each in races.values():
                each.start()
            formed = talks.run(lambda: len(made) == len(wanted), self._talk_until())
            admission.refusals.tell()
            if not formed:
                left = {p: p.dialer + p.acceptor - rank for p in wanted if p not in made}
                tried = next((races[p].describe() for p in left if p in races), "")
                raise self._late("connect", set(left.values()), tried)
        return made, sessions

    def _network_peers(
        self,
        wanted: Iterable[Purpose],
        made: dict[Purpose, int],
        sessions: dict[Purpose, Session],
        levels: dict[int, str],
    ) -> list[NetworkPeer]:
        rank = self.place.rank
        control: dict[int, Purpose] = {}
        data: dict[int, list[Purpose]] = {}
        for purpose in wanted:
            other = purpose.dialer + purpose.acceptor - rank
            if purpose.role is Role.DATA:
                data.setdefault(other, []).append(purpose)
            else:
                control[other] = purpose
        peers = []
        for other in sorted({*control, *data}):
            edge, streams, level = control.get(other), data.get(other, []), levels[other]
            keys = [key_of(sessions.get(p) if p else None, level) for p in (edge, *streams)]
            sealed = Sealed(number_of(level), tuple(keys) if level != "off" else ())
            fds = [made[purpose] for purpose in streams]
            peers.append(NetworkPeer(other, made[edge] if edge else -1, fds, sealed))
        return peers

    def _make_room(self, groups: Sequence[Sequence[int]]) -> None:
        """Enough descriptors for the mesh, said now and not half-way. Five for each local peer, of which one
        more is open while it comes.
        """
        local_peers = len(next(group for group in groups if self.place.rank in group)) - 1
        now, late = self._connections(groups)
        what = f"{self._me()}: the connections to {self.place.size - 1} other ranks"
        make_room(6 * local_peers + len(now), what, perhaps=len(late) + (MORE_STRANGERS if late else 0))

    # -- parts of all --

    def _gather(self, prefix: str, mine: Any, step: str, *, usual: Any) -> list[Any]:
        """Return what each rank says below ``prefix``, once all have; a rank that says nothing is late for
        ``step``. Most ranks say what is ``usual``: it does not travel.
        """
        self.store.set(f"{prefix}{self.place.rank}", mine)
        try:
            book = self.store.collect(prefix, self.place.size, self._left_s(), usual)
        except StoreTimeout as error:
            raise self._late(step, (int(key.removeprefix(prefix)) for key in error.keys)) from error
        return [book.get(str(rank), usual) for rank in range(self.place.size)]

    def _watch(self, joined: Round, group_scope: str | None) -> Conversation[None]:
        """End the waiting when the round, or sharing memory in our group, is given up by anybody."""
        while True:
            for scope, cause in self.store.aborted.items():
                if scope == joined.scope:
                    raise cause.error()
                if scope == group_scope:
                    raise _NotSharable(cause.text)
            yield self.store, selectors.EVENT_READ
            self.store.pump()

    def _leave(self, joined: Round) -> None:
        """Done with the store. The world stands, so it does not matter if the store is gone already."""
        try:
            self.store.unwatch(joined.scope)
            if self.place.rank == 0 and joined.previous is not None:
                self.store.remove(joined.previous)  # all ranks are here, so nobody reads there any more
        except RendezvousError as error:
            _log.debug("%s", error)

    def _tell(self, joined: Round, error: BaseException) -> Cause | None:
        """Tell the others that this rank gives up. If even this fails, they notice the loss of its
        connection.

        Returns:
            The cause that counts for all, if the store answers: somebody may have been faster.
        """
        if isinstance(error, RendezvousError) and (error.missing or error.rank is not None):
            # This one has only noticed it.
            cause = Cause(str(error), error.missing, error.waited_s, error.rank, error.host or "")
        else:
            cause = Cause(self._words_of(error), rank=self.place.rank, host=self.place.host)
        try:
            self.store.abort(joined.scope, cause)
        except HorovodInternalError:
            return None
        return self.store.aborted.get(joined.scope)

    def _words_of(self, error: BaseException) -> str:
        """Describe a failure of this rank to the others."""
        text, kind = str(error), type(error).__name__
        if isinstance(error, SystemExit):
            status = "" if error.code is None else repr(error.code)[:_MOST_CHARACTERS]
            return f"{self._me()} ended within hvd.init() by sys.exit({status})."
        if isinstance(error, RendezvousError) or text.startswith(self._me()):
            return text or kind
        if isinstance(error, HorovodError | OSError) and text:
            return f"{self._me()}: {text}"
        return f"{self._me()}: {kind}: {text}" if text else f"{self._me()}: {kind}"

    def _late(self, what: str, ranks: Iterable[int], tried: str = "") -> RendezvousError:
        missing = tuple(sorted(ranks))
        names = ", ".join(self._name(rank) for rank in missing[:8]) + (" ..." if len(missing) > 8 else "")
        return RendezvousError(
            f"{self._me()} could not {what} with {names} within {self.config.init_timeout_s:g} s. "
            f"{f'Tried {tried}. ' if tried else ''}"
            "They did call hvd.init(): are they stopped or overloaded, or does a firewall drop the packets?",
            missing=missing,
            waited_s=self.config.init_timeout_s,
        )

    def _talk_until(self) -> float:
        return self.deadline - min(_WORD_S, self.config.init_timeout_s / 10)

    def _left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _me(self) -> str:
        return f"Rank {self.place.rank} on host {self.place.host}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} on host {self.hosts[rank]}"


class _NotSharable(Exception):
    """Another rank of the group found that sharing memory does not work."""


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (" ..." if len(ranks) > 16 else "")
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {shown}"
