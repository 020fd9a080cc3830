"""Address of a job's store in variables: addresses and a port, or a socket of this machine.

A store that only this machine needs has no port. Scripts may read the variables of the address all the same:
it is that of the loopback interface, and the port is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.bootstrap.place.addresses import join_hosts, split_hosts
from horovod.bootstrap.trust import unix
from horovod.errors import ConfigError

__all__ = ["ADDRESS_VARIABLE", "PORT_VARIABLE", "SOCKET_VARIABLE", "read_store", "shown", "store_environment"]

ADDRESS_VARIABLE = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
SOCKET_VARIABLE = "HOROVOD_STORE"
PORT_VARIABLE = "HOROVOD_GLOO_RENDEZVOUS_PORT"


def store_environment(places: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The variables that say ``places``: host and port of every way, or the name of one socket."""
    host, port = places[0]
    if unix.is_name(host):
        return {ADDRESS_VARIABLE: "127.0.0.1", PORT_VARIABLE: "0", SOCKET_VARIABLE: host}
    return {ADDRESS_VARIABLE: join_hosts([each for each, _ in places]), PORT_VARIABLE: str(port)}


def read_store(environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """The opposite: host and port of every way to the store; empty if nothing is said. Where a port is named,
    the socket does not count: it is that of an enclosing job.

    Raises:
        ConfigError: half of a pair is missing, or what is there makes no sense.
    """
    name = environ.get(SOCKET_VARIABLE)
    host, port = environ.get(ADDRESS_VARIABLE), environ.get(PORT_VARIABLE)
    if name and (not port or port == "0"):
        if not unix.is_name(name):
            raise ConfigError(
                f"{SOCKET_VARIABLE}={name} is not the name of a socket: @ and letters, digits and dashes.",
                variable=SOCKET_VARIABLE,
            )
        return ((name, unix.NO_PORT),)
    if not host and (not port or port == "-1"):
        return ()
    if not host or not port:
        missing, other = (ADDRESS_VARIABLE, PORT_VARIABLE) if port else (PORT_VARIABLE, ADDRESS_VARIABLE)
        raise ConfigError(f"{other} is set, but {missing} is not: set both or none.", variable=missing)
    try:
        number = int(port)
    except ValueError:
        raise ConfigError(f"{PORT_VARIABLE}={port} must be a whole number.", variable=PORT_VARIABLE) from None
    if not 0 < number < 65536:
        raise ConfigError(f"{PORT_VARIABLE}={port} must be between 1 and 65535.", variable=PORT_VARIABLE)
    try:
        return tuple((each, number) for each in split_hosts(host))
    except ValueError as error:
        raise ConfigError(
            f"{ADDRESS_VARIABLE}={host}: {error}. It is a list of names or addresses such as "
            "10.0.0.1,[fd00::1].",
            variable=ADDRESS_VARIABLE,
        ) from None


def shown(places: Sequence[tuple[str, int]]) -> str:
    """For messages."""
    if unix.is_name(places[0][0]):
        return places[0][0]
    return f"{join_hosts([host for host, _ in places])}, port {places[0][1]}"
