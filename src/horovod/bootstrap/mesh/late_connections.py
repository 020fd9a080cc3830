"""Connections that are made when an operation needs them: in large worlds, most pairs of ranks never exchange
anything.

A thread of its own accepts those that dial this rank, and dials those that the engine asks for, as long as
the world stands. An operation that needs a connection waits for it; what cannot be made is the operation's
error.

After the handshake the accepting side says a byte, once it has put the connection into safety. Until then the
dialing side may try again: the other one may have lacked a descriptor, or have dropped it in a crowd of
strangers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from horovod.bootstrap.mesh.others import Others
from horovod.bootstrap.network.routes import Race, Route
from horovod.bootstrap.trust.admission import Admission
from horovod.bootstrap.trust.conversation import NOW, Conversation, Conversations, receive, send
from horovod.bootstrap.trust.handshake import Purpose
from horovod.bootstrap.trust.protection import key_of, number_of
from horovod.bootstrap.trust.session import Session

__all__ = ["LateConnections", "left_s"]

_log = logging.getLogger("horovod.bootstrap")

_ROUND_S = 30.0
"""Strangers are told of so often at least, if there were any."""

_CAUSE_S = 0.2
"""A rank that refuses may be about to end: the engine hears of it in a moment."""

_AGAIN_S = 0.05

_MOST_LIMITS = 5
"""A rank is given up after so many limits, whatever else goes on."""

_WELCOME = b"\1"

_services: weakref.WeakSet[_Service] = weakref.WeakSet()
"""Services of this process, for a forked child."""


class Asking(Protocol):
    """Owner of the late connections: the engine. Each call owns its descriptors, also when it raises."""

    def wanted_bell(self) -> int: ...
    def wanted_connections(self) -> list[int]: ...
    def add_connections(self, rank: int, data: list[int], protection: int, keys: list[bytes]) -> None: ...
    def refuse_connections(self, rank: int, reason: str) -> None: ...
    def cover(self, descriptor: int) -> None: ...
    def uncover(self, descriptor: int) -> None: ...


class LateConnections:
    """Of one rank, from the end of ``init`` to that of the world.

    Args:
        rank: this one.
        wanted: all that may be made.
        listeners: where the others dial this rank; owned from now on.
        offered: where each rank listens.
        others: how they are reached.
        key: the key of the job.
        limit_s: how long one may take while no other is made.

    Raises:
        ConfigError: what would protect them is missing, or ranks contradict each other.
        OSError: the kernel does not tell the addresses of this host.
    """

    def __init__(
        self,
        rank: int,
        wanted: Sequence[Purpose],
        listeners: Sequence[socket.socket],
        offered: Sequence[Sequence[tuple[str, int]]],
        others: Others,
        key: bytes,
        limit_s: float,
    ) -> None:
        self.rank = rank
        self.wanted: dict[int, list[Purpose]] = {}
        for purpose in wanted:
            self.wanted.setdefault(purpose.dialer + purpose.acceptor - rank, []).append(purpose)
        self.levels = others.levels(self.wanted)
        self.offered = offered
        self.others = others
        self.key = key
        self.limit_s = limit_s
        others.routes(rank, ())  # looks the own addresses up: later there may be no descriptor for that
        self._listeners = list(listeners)
        self._thread: threading.Thread | None = None
        self._stop = -1

    def start(self, engine: Asking) -> None:
        """Begin. The engine is open, and outlives ``close``."""
        with contextlib.ExitStack() as failed:
            self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            failed.callback(os.close, self._stop)
            for listener in self._listeners:
                engine.cover(listener.fileno())
                failed.callback(engine.uncover, listener.fileno())
            thread = threading.Thread(target=self._serve, args=(engine,), name="horovod-connect", daemon=True)
            thread.start()
            failed.pop_all()
            self._thread = thread

    def close(self) -> None:
        """End, with all that was not given to the engine. Idempotent."""
        if self._thread is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
            os.close(self._stop)
            self._thread = None
        self._close_listeners()

    def _serve(self, engine: Asking) -> None:
        try:
            with Conversations() as talks:
                _Service(self, engine, talks).run(self._listeners, self._stop)
        except Exception as error:  # operations must not wait for what nobody makes
            _log.exception("%s cannot make connections any more.", self.others.me)
            for rank in self.wanted:
                engine.refuse_connections(rank, f"{self.others.me} cannot make connections any more: {error}")
        finally:
            self.forget_listeners(engine)  # whoever dials is refused, and need not wait

    def forget_listeners(self, engine: Asking) -> None:
        """Nobody is let in any more."""
        for listener in self._listeners:
            engine.uncover(listener.fileno())
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()


class _Service:
    """Work of the thread that makes the connections."""

    def __init__(self, plan: LateConnections, engine: Asking, talks: Conversations) -> None:
        self._plan = plan
        self._engine = engine
        self._talks = talks
        self._made: dict[int, dict[int, tuple[socket.socket, Session]]] = {}
        self._stopped = False
        self._kept_at = time.monotonic()
        expected = [p for purposes in plan.wanted.values() for p in purposes if p.acceptor == plan.rank]
        self._admission = Admission(talks, plan.key, expected, self._answer, plan.others.me)

    def run(self, listeners: Sequence[socket.socket], stop: int) -> None:
        """Until ``stop`` is readable."""
        talks, refusals = self._talks, self._admission.refusals
        _services.add(self)
        try:
            self._admission.start(listeners)
            talks.start(self._until(_Descriptor(stop)))
            talks.start(self._listen_to(_Descriptor(self._engine.wanted_bell())))
            while not talks.run(lambda: self._stopped, time.monotonic() + _ROUND_S):
                refusals.tell()
            refusals.tell()
        finally:
            _services.discard(self)
            for rank in list(self._made):
                self._drop(rank)

    def descriptors(self) -> list[int]:
        """Of all that has been accepted or dialed, and is not the engine's."""
        made = [connection.fileno() for each in self._made.values() for connection, _ in each.values()]
        return [*self._talks.descriptors(), *made]

    def _until(self, stop: _Descriptor) -> Conversation[None]:
        yield stop, selectors.EVENT_READ
        self._stopped = True

    def _listen_to(self, bell: _Descriptor) -> Conversation[None]:
        """Dial what the engine asks for, where dialing is this side's."""
        plan = self._plan
        while True:
            yield bell, selectors.EVENT_READ
            for other in self._engine.wanted_connections():
                if other < plan.rank:
                    routes = plan.others.routes(other, plan.offered[other])
                    dialing = _Dialing(self._talks, plan, other, self._keep, self._refuse, self._last_kept)
                    dialing.start(routes)

    def _last_kept(self) -> float:
        return self._kept_at

    def _answer(self, connection: socket.socket, purpose: Purpose, session: Session) -> Conversation[None]:
        try:
            yield from send(connection, _WELCOME)
        except OSError as error:
            _log.debug("%s: rank %d has gone: %s", self._plan.others.me, purpose.dialer, error)
            connection.close()
            self._admission.expect(purpose)
            return
        self._keep(connection, purpose, session)
        if not self._admission.expects:
            self._talks.start(self._shut())

    def _shut(self) -> Conversation[None]:
        """Nobody is to come any more. In a turn of its own: whoever accepts may be at work right now."""
        yield NOW
        if not self._admission.expects:
            self._admission.stop()
            self._plan.forget_listeners(self._engine)

    def _keep(self, connection: socket.socket, purpose: Purpose, session: Session) -> None:
        """Once all connections to a rank are there, they are the engine's."""
        plan = self._plan
        other = purpose.dialer + purpose.acceptor - plan.rank
        made = self._made.setdefault(other, {})
        made[purpose.index] = connection, session
        self._kept_at = time.monotonic()
        if len(made) < len(plan.wanted[other]):
            return
        del self._made[other]
        in_order = [made[index] for index in sorted(made)]
        level = plan.levels[other]
        keys = [key_of(session, level) for _, session in in_order] if level != "off" else []
        data = [connection.detach() for connection, _ in in_order]
        self._engine.add_connections(other, data, number_of(level), keys)
        _log.debug("%s is connected with %s now.", plan.others.me, plan.others.name(other))

    def _refuse(self, rank: int, reason: str) -> None:
        self._drop(rank)
        self._engine.refuse_connections(rank, reason)

    def _drop(self, rank: int) -> None:
        for connection, _ in self._made.pop(rank, {}).values():
            connection.close()


class _Dialing:
    """All connections to one rank, over whichever way works, within the limit."""

    def __init__(
        self,
        talks: Conversations,
        plan: LateConnections,
        rank: int,
        keep: Callable[[socket.socket, Purpose, Session], None],
        refuse: Callable[[int, str], None],
        last_kept: Callable[[], float],
    ) -> None:
        self._talks = talks
        self._plan = plan
        self._rank = rank
        self._keep = keep
        self._refuse = refuse
        self._last_kept = last_kept
        self._routes: Sequence[Route] = ()
        self._races: dict[Purpose, Race] = {}
        self._left = len(plan.wanted[rank])

    def start(self, routes: Sequence[Route]) -> None:
        """Begin."""
        self._routes = routes
        for purpose in self._plan.wanted[self._rank]:
            self._race(purpose)
        self._talks.start(self._refuse_in_time(time.monotonic()))

    def _race(self, purpose: Purpose) -> None:
        def won(connection: socket.socket, _: Route, session: Session) -> None:
            self._talks.start(self._be_welcome(connection, purpose, session))

        # Tried again while refused: a rank that has ended is noticed elsewhere, and named better there.
        key = self._plan.key
        race = Race(self._talks, self._routes, key, purpose, won, self._lost, retries=True)
        self._races[purpose] = race
        race.start()

    def _be_welcome(
        self, connection: socket.socket, purpose: Purpose, session: Session
    ) -> Conversation[None]:
        with contextlib.ExitStack() as doomed:
            doomed.callback(connection.close)
            try:
                yield from receive(connection, len(_WELCOME))
            except OSError as error:
                _log.debug("%s dials rank %d again: %s", self._plan.others.me, self._rank, error)
            else:
                if self._left > 0:
                    doomed.pop_all()
                    self._left -= 1
                    self._keep(connection, purpose, session)
                return
        yield _AGAIN_S
        if self._left > 0:
            self._race(purpose)

    def _lost(self) -> None:
        self._talks.start(self._refuse_after(_CAUSE_S))

    def _refuse_after(self, wait_s: float) -> Conversation[None]:
        yield wait_s
        self._give_up()

    def _refuse_in_time(self, began: float) -> Conversation[None]:
        while (wait_s := left_s(time.monotonic(), began, self._last_kept(), self._plan.limit_s)) > 0:
            yield wait_s
            if self._left == 0:
                return
        self._give_up()

    def _give_up(self) -> None:
        if self._left == 0:
            return
        self._left = 0
        tried = next((text for race in self._races.values() if (text := race.describe())), "")
        for race in self._races.values():
            race.over = True
        self._refuse(self._rank, self._plan.others.unreachable(self._rank, tried))


def left_s(now: float, began: float, last_kept: float, limit_s: float) -> float:
    """Seconds until a rank that has not answered is given up. Where hundreds connect at once, the last ones
    are late because of the others: with each connection that is made the limit begins anew.
    """
    return min(max(began, last_kept) + limit_s, began + _MOST_LIMITS * limit_s) - now


class _Descriptor:
    """A number of the kernel's; who made it closes it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


def _after_fork() -> None:
    """A child holds no connection that its parent is making: whoever is at its other end would not see it
    closed.
    """
    null = -1
    for service in list(_services):
        for descriptor in service.descriptors():
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if null < 0 else null
            os.dup2(null, descriptor, inheritable=False)
    if null >= 0:
        os.close(null)
    _services.clear()


os.register_at_fork(after_in_child=_after_fork)
