"""Rank 0 as the server of the store, for jobs of launchers that serve none."""

from __future__ import annotations

import socket

from horovod.bootstrap.store import StoreServer
from horovod.bootstrap.topology import Place
from horovod.errors import ConfigError

__all__ = ["serve_store"]


def serve_store(place: Place, key: bytes) -> StoreServer:
    """Serve the store at ``place.store``, until the process ends: other ranks may come back to form another
    world.

    Raises:
        ConfigError: that address is not one of this host, or the port is taken.
    """
    assert place.store is not None
    host, port = place.store
    try:
        server = StoreServer(key, _interface(place, host), port)
    except OSError as error:
        raise ConfigError(
            f"Rank {place.rank} on host {place.host} cannot serve the store at {host}:{port}: "
            f"{error.strerror}. Set HOROVOD_GLOO_RENDEZVOUS_ADDR to an address of this host and "
            "HOROVOD_GLOO_RENDEZVOUS_PORT to a port that is free here, the same for every rank.",
            variable="HOROVOD_GLOO_RENDEZVOUS_PORT",
        ) from error
    server.start()
    return server


def _interface(place: Place, host: str) -> str:
    """The address to bind: the one that the others use, unless this host alone takes that name for
    loopback.
    """
    found = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    only_here = host in ("localhost", found) or (place.local is not None and place.local[1] == place.size)
    return "0.0.0.0" if found.startswith("127.") and not only_here else found
