"""Rank 0 as the server of the store, for jobs of launchers that serve none."""

from __future__ import annotations

from horovod.bootstrap.network.routes import Route, resolve
from horovod.bootstrap.place.addresses import loopback_addresses, own_addresses
from horovod.bootstrap.place.descriptors import make_room
from horovod.bootstrap.place.topology import RankPlace
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.errors import ConfigError

__all__ = ["serve_store"]


def serve_store(place: RankPlace, key: bytes, interfaces: str = "") -> StoreServer:
    """Serve the store at ``place.store``, until the process ends: other ranks may come back to form another
    world.

    Args:
        place: who this process is, and where the others will look for the store.
        key: the key of the job.
        interfaces: the setting ``HOROVOD_GLOO_IFACE``.

    Raises:
        ConfigError: that address is not one of this host, or the port or name is taken.
        BackendError: this process may not open so many files.
    """
    make_room(place.size, f"{place.launcher}: the store of {place.size} ranks on rank {place.rank}")
    first, port = place.store[0]
    try:
        hosts = [first] if unix.is_name(first) else _hosts(place, interfaces)
        server = StoreServer(key, hosts, port, job=place.job)
    except OSError as error:
        where = ", ".join(str(Route(host, port)) for host, port in place.store)
        if unix.is_name(first):
            raise ConfigError(
                f"Rank {place.rank} on host {place.host} cannot serve the store at {where}: "
                f"{error.strerror}. Is there another job with the same name ({place.job}) and key?"
            ) from error
        raise ConfigError(
            f"Rank {place.rank} on host {place.host} cannot serve the store at {where}: "
            f"{error.strerror}. Set HOROVOD_GLOO_RENDEZVOUS_ADDR to an address of this host and "
            "HOROVOD_GLOO_RENDEZVOUS_PORT to a port that is free here, the same for every rank.",
            variable="HOROVOD_GLOO_RENDEZVOUS_PORT",
        ) from error
    server.start()
    return server


def _hosts(place: RankPlace, interfaces: str) -> list[str]:
    """The addresses to bind: those that the others use. Where this host takes its own name for loopback,
    others do not: then all that they may reach, and loopback for ourselves.
    """
    routes, unknown = resolve(place.store)
    if not routes:
        raise OSError(None, next(iter(unknown.values())))
    found = [route.host for route in routes]
    loopback = {address.host for address in loopback_addresses()}
    written = {host for host, _ in place.store}
    named = [host for host in found if host.startswith("127.") or host in loopback]
    if named and not place.one_host and not written <= {"localhost", *loopback}:
        return list(dict.fromkeys(found + [address.host for address in own_addresses(interfaces)]))
    own = {address.host for address in own_addresses()} | loopback
    return [host for host in found if host in own or host.startswith("127.")] or found
