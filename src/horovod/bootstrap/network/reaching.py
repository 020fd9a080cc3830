"""The way from a rank to the store: every address that it was given is tried, until one proves the key."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from horovod.bootstrap.network.routes import Race, Route, resolve
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.conversation import Conversations, keep_alive
from horovod.bootstrap.trust.handshake import store_purpose
from horovod.bootstrap.trust.session import Session
from horovod.errors import AuthenticationError, RendezvousError

__all__ = ["reach_store"]

_RESOLVE_AGAIN_S = 0.5
_STRANGER_S = 1.0
"""Time that the other ways may still take when somebody else answers at one of them."""


def reach_store(
    places: Sequence[tuple[str, int]], key: bytes, timeout_s: float, identity: str, job: str
) -> tuple[socket.socket, Route, Session]:
    """A connection to the store that has passed the handshake, the address that answered, and its keys.

    Args:
        places: host (a name or a number) and port of every way to it, or the name of a Unix socket.
        key: the key of the job.
        timeout_s: a server that is not there yet is tried again until then.
        identity: who this is, for messages.
        job: the name of the job; one key may be that of several.

    Raises:
        AuthenticationError: whoever answers does not know the key, or is of another job or user.
        RendezvousError: nobody answers.
    """
    deadline = time.monotonic() + timeout_s
    routes, unknown = resolve(places)
    while not routes and time.monotonic() + _RESOLVE_AGAIN_S < deadline:
        time.sleep(_RESOLVE_AGAIN_S)  # names may become known a moment after a host has started
        routes, unknown = resolve(places)
    reached: list[tuple[socket.socket, Route, Session]] = []
    with Conversations() as talks:
        race = Race(
            talks,
            routes,
            key,
            store_purpose(job),
            lambda *won: reached.append(won),
            lambda: None,
            retries=True,
        )
        if routes:
            race.start()
            talks.run(lambda: race.over or _refused(race), deadline)
        if _refused(race) and not race.over:
            talks.run(lambda: race.over, min(deadline, time.monotonic() + _STRANGER_S))
        if reached:
            connection, route, session = reached[0]
            connection.settimeout(None)
            keep_alive(connection)
            return connection, route, session
    where = race.describe(list(unknown.items()))
    if _refused(race):
        raise AuthenticationError(
            f"{identity} does not find the store of this job, or has another key: {where}. "
            "HOROVOD_SECRET_KEY must be the same in the launcher and in every rank, and so must "
            "HOROVOD_JOB_ID and, on one machine, the user."
        )
    raise RendezvousError(
        f"No store answers {identity} at {where}. It is served by the launcher, or by rank 0: is it still "
        f"running, and {_reached(places)}?",
        waited_s=timeout_s,
    )


def _reached(places: Sequence[tuple[str, int]]) -> str:
    if unix.is_name(places[0][0]):
        return (
            "is this process in the same network namespace? If not, set HOROVOD_GLOO_RENDEZVOUS_ADDR and "
            "HOROVOD_GLOO_RENDEZVOUS_PORT to an address of rank 0 and a free port there"
        )
    return "can this host reach that address"


def _refused(race: Race) -> bool:
    return any(isinstance(error, AuthenticationError) for error in race.failures.values())
