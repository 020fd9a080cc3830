"""Several ways to the same peer: try them staggered, and take the first that proves the key.

Which way works is not known beforehand: a host has several interfaces, some lead nowhere, and the same
private number may exist on both ends. So the addresses are tried one after the other, each a moment after
the one before unless that one has answered by then (RFC 8305 calls this happy eyeballs): a dead one costs
that moment only. Whose end it is decides the handshake, never the number.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from horovod.bootstrap.place.addresses import Address, is_number
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.conversation import (
    Conversation,
    Conversations,
    TurnedAway,
    connect_to,
    greet,
    send,
)
from horovod.bootstrap.trust.handshake import Dialer, Purpose
from horovod.bootstrap.trust.session import Session
from horovod.errors import AuthenticationError

__all__ = ["Race", "Route", "numeric_routes", "resolve"]

_STAGGER_S = 0.05
"""A kernel answers a connection by itself, so on a working way within a network an answer takes no longer."""

_PATIENCE_S = 1.0
"""Extra time that a connected way may take for the handshake: its process may be busy."""

_RETRY_FIRST_S = 0.02
_RETRY_LAST_S = 0.5

_MOST_REFUSALS = 5
"""Of one way, before it is taken for that of somebody else: a crowd of strangers may push us out."""


@dataclass(frozen=True)
class Route:
    """One address to connect to: number as text and port, or the name of a Unix socket. ``name``: what it was
    resolved from.
    """

    host: str
    port: int
    name: str = ""

    @property
    def family(self) -> int:
        if unix.is_name(self.host):
            return socket.AF_UNIX
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def address(self) -> tuple[str, int] | str:
        """Address in the form that the system's calls take."""
        return unix.socket_address(self.host) if unix.is_name(self.host) else (self.host, self.port)

    def __str__(self) -> str:
        if unix.is_name(self.host):
            return self.host
        number = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"{number} ({self.name})" if self.name and self.name != self.host else number


def numeric_routes(
    offered: Sequence[tuple[str, int]], mine: Sequence[Address], *, same_machine: bool
) -> list[Route]:
    """The ways to a rank that listens at ``offered``, the likely ones first.

    Loopback leads to a rank of this machine and to no other; the same holds for a number that this machine
    has itself. What is in a subnet of this machine comes before what needs a router.
    """
    routes = [Route(host, port) for host, port in offered]
    own = {address.host for address in mine}
    loopback = {route for route in routes if route.host == "::1" or route.host.startswith("127.")}
    if same_machine:
        return sorted(routes, key=lambda route: route not in loopback)
    routes = [route for route in routes if route not in loopback and route.host not in own]
    near = {
        route
        for route in routes
        if any(ipaddress.ip_address(route.host) in address.network for address in mine)
    }
    return sorted(routes, key=lambda route: route not in near)


def resolve(places: Sequence[tuple[str, int]]) -> tuple[list[Route], dict[Route, str]]:
    """The ways to hosts or Unix sockets: all numbers of hosts, each once, and the names that lead nowhere."""
    routes: dict[tuple[str, int], Route] = {}
    failures: dict[Route, str] = {}
    for host, port in places:
        if is_number(host) or unix.is_name(
            host
        ):  # the common case, and the first look-up of a process costs 10 ms
            routes.setdefault((host, port), Route(host, port, host))
            continue
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failures[Route(host, port)] = str(error.strerror or error)
            continue
        for _, _, _, _, address in found:
            number = str(address[0])
            routes.setdefault((number, port), Route(number, port, host))
    return list(routes.values()), failures


class Race:
    """One connection of ``purpose``, over whichever of ``routes`` works first.

    Args:
        talks: runs the attempts; whatever is left of them ends with it.
        won: is given the authenticated connection, its route and its keys.
        lost: is called when every route has failed; ``failures`` says why. May raise.
        retries: try a way again that refuses: nobody may listen there yet. Then only a wrong key is a
            failure.
    """

    def __init__(
        self,
        talks: Conversations,
        routes: Sequence[Route],
        key: bytes,
        purpose: Purpose,
        won: Callable[[socket.socket, Route, Session], None],
        lost: Callable[[], None],
        *,
        retries: bool = False,
    ) -> None:
        self.routes = list(routes)
        self.failures: dict[Route, Exception] = {}
        self.over = False
        self._talks = talks
        self._key = key
        self._purpose = purpose
        self._won = won
        self._lost = lost
        self._retries = retries
        self._untried = list(routes)
        self._trying: set[Route] = set()
        self._connected: set[Route] = set()

    def start(self) -> None:
        """Begin with the first route."""
        self._next()
        if self._untried and not self.over:
            self._talks.start(self._hurry())

    def describe(self, others: Collection[tuple[Route, str]] = ()) -> str:
        """Every address and what became of it."""
        return "; ".join(f"{route}: {reason}" for route, reason in [*self._reasons(), *others])

    def _reasons(self) -> Iterator[tuple[Route, str]]:
        for route in self.routes:
            if route in self.failures:
                error = self.failures[route]
                yield route, str(error.strerror or error) if isinstance(error, OSError) else str(error)
            elif route in self._connected:
                yield route, "connected, but the handshake was not answered"
            elif route in self._trying:
                yield route, "no answer"
            else:
                yield route, "not tried"

    def _next(self) -> None:
        if self._untried and not self.over:
            route = self._untried.pop(0)
            self._trying.add(route)
            self._talks.start(self._attempt(route))
        elif not self._trying and not self.over:
            self.over = True
            self._lost()

    def _hurry(self) -> Conversation[None]:
        """Begin with the next route when the one before is silent."""
        while self._untried and not self.over:
            yield _STAGGER_S
            patient_until = time.monotonic() + _PATIENCE_S - _STAGGER_S
            while self._connected and not self.over and time.monotonic() < patient_until:
                yield _STAGGER_S
            if self._untried:
                self._next()

    def _attempt(self, route: Route) -> Conversation[None]:
        pause_s = _RETRY_FIRST_S
        refusals = 0
        while not self.over:
            try:
                connection, session = yield from self._try(route)
            except TurnedAway as error:
                refusals += 1
                if refusals == _MOST_REFUSALS:
                    self.failures[route] = error
                    break
            except OSError as error:
                self.failures[route] = error
                if not self._retries:
                    break
            except AuthenticationError as error:
                self.failures[route] = error
                break
            else:
                self._won(connection, route, session)
                return
            self._connected.discard(route)
            if self._untried:
                self._next()
            yield pause_s
            pause_s = min(2 * pause_s, _RETRY_LAST_S)
        self._trying.discard(route)
        self._connected.discard(route)
        self._next()

    def _try(self, route: Route) -> Conversation[tuple[socket.socket, Session]]:
        connection = yield from connect_to(route.family, route.address)
        try:
            self._connected.add(route)
            dialer = Dialer(self._key, self._purpose)
            proof = yield from greet(connection, dialer)
            if self.over:
                raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
            # From here on the other routes give up before their proof: the other side lets in this one only.
            self.over = True
            try:
                yield from send(connection, proof)
            except OSError:
                self.over = False
                raise
            return connection, dialer.session()
        except BaseException:
            connection.close()
            raise
