"""Sockets at which a rank listens for ranks of other groups, and the connections that it needs."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from horovod.bootstrap.network.groups import control_edges
from horovod.bootstrap.place import proc
from horovod.bootstrap.place.addresses import is_number, loopback_addresses, own_addresses
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.handshake import Purpose, Role

if TYPE_CHECKING:  # a launcher listens, too, and needs none of this
    from horovod.bootstrap.place.topology import RankPlace
    from horovod.config import Config

__all__ = [
    "connections_of",
    "listen",
    "listen_at",
    "listening_hosts",
    "namespace",
    "own_hosts",
    "source_towards",
]

_ATTEMPTS = 16
_BACKLOG = 4096
_DISCARD = 9  # any port will do: nothing is sent


def listen_at(hosts: Sequence[str], port: int = 0, reserved: Collection[str] = ()) -> list[socket.socket]:
    """TCP sockets on ``hosts``, names or numbers, and on no other interface; all have one port. Or a Unix
    socket, if the only host is the name of one.

    The backlog is long, so that strangers do not fill it before the ranks come.

    Args:
        hosts: addresses of this host.
        port: 0 = one that is free on all of them.
        reserved: those of ``hosts`` where nobody listens yet: the port is kept there, until ``listen``.

    Raises:
        OSError: a host is not of this machine, or the port or name is taken.
    """
    if len(hosts) == 1 and unix.is_name(hosts[0]):
        return [unix.listen(hosts[0])]
    for attempt in range(_ATTEMPTS):
        listeners: list[socket.socket] = []
        try:
            for host in hosts:
                number = listeners[0].getsockname()[1] if listeners else port
                listeners.append(_bound(host, number, reserved=host in reserved))
                if host not in reserved:
                    listen(listeners[-1])
            return listeners
        except OSError as error:
            for listener in listeners:
                listener.close()
            # Free on the first one only: another one will do.
            if error.errno != errno.EADDRINUSE or port or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


def listen(bound: socket.socket) -> None:
    """Let others connect with a socket that is bound."""
    bound.listen(_BACKLOG)


def namespace() -> tuple[str, int]:
    """Identify the running kernel and the network namespace in it: processes that have both in common reach
    each other over loopback, and over Unix sockets without a file.
    """
    return proc.boot_id(), proc.namespace("net")


def own_hosts(place: RankPlace, config: Config, store_host: str) -> list[str]:
    """The addresses of this host that others may know it by: those of ``HOROVOD_GLOO_IFACE``; else loopback
    if the ranks meet where only this host can; else everything that others may reach, the way to the store
    first.

    Args:
        place: who this process is and where it meets the others.
        config: the interfaces, if any are chosen.
        store_host: address of this host on the interface that reaches the store; "" of a Unix socket.

    Raises:
        ConfigError: none of the chosen interfaces exists here.
        OSError: the kernel does not tell which there are.
    """
    if config.network_interface:
        return [address.host for address in own_addresses(config.network_interface)]
    loopback = [address.host for address in loopback_addresses()]
    meets_here = all(host in ("localhost", *loopback) or unix.is_name(host) for host, _ in place.store)
    if meets_here:
        return [store_host] if store_host in loopback else loopback[:1]
    hosts = [address.host for address in own_addresses()]
    if store_host in hosts or not hosts:
        hosts.insert(0, store_host)
    return list(dict.fromkeys(hosts))


def listening_hosts(own: Sequence[str], others: Collection[str], *, chosen: bool, here: bool) -> list[str]:
    """Addresses at which this rank listens for the ranks that dial it: those of the interfaces by which its
    routing table leads to them, and no others. Addresses that ``HOROVOD_GLOO_IFACE`` has chosen are taken as
    they are.

    Args:
        own: the addresses of this host that others may know it by.
        others: addresses of the other hosts that ranks dial from; empty if none do.
        chosen: ``own`` are those of ``HOROVOD_GLOO_IFACE``.
        here: ranks of this host dial, too.

    Raises:
        OSError: the kernel does not tell which there are.
    """
    if chosen:
        return list(own)
    loopback = [address.host for address in loopback_addresses()]
    if not others:
        return [host for host in own if host in loopback] or loopback[:1] or list(own)
    known = {address.host: address.interface for address in own_addresses()}
    ways = {source_towards(host) for host in others if host not in known}
    interfaces = {known[way] for way in ways if way in known}
    # Without a way to anybody that the routing table knows, trying all is what is left.
    hosts = [host for host in own if known.get(host) in interfaces] or own
    return list(dict.fromkeys([*hosts, *(loopback[:1] if here else [])]))


def source_towards(host: str) -> str:
    """The address of ours that packets to ``host``, a number, would have; "" if there is no way. The kernel
    looks into its routing table, and nothing is sent.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def connections_of(
    rank: int, groups: Sequence[Sequence[int]], world: bytes, streams: int = 1, connect_all: int = 0
) -> tuple[list[Purpose], list[Purpose]]:
    """Every network connection that ``rank`` takes part in: the higher rank dials, the lower one accepts.

    ``streams`` data connections for each rank of another group, numbered from 0, and a control connection for
    each edge of the control tree that leaves the group.

    Returns:
        Those of the start, and those that wait until an operation needs them. In a world of more than
        ``connect_all`` ranks, data connections of the start are those of allreduce, broadcast and barrier:
        between ranks of the same index in their groups, if the numbers of the groups, which count round and
        round, are a power of two apart. 0: none wait.
    """
    number, mine = next((at, group) for at, group in enumerate(groups) if rank in group)
    everybody = connect_all == 0 or sum(map(len, groups)) <= connect_all
    own_index = list(mine).index(rank)
    at_start: list[Purpose] = []
    late: list[Purpose] = []
    for at, group in enumerate(groups):
        if at == number:
            continue
        near = everybody or _power_of_two((at - number) % len(groups), (number - at) % len(groups))
        for index, other in enumerate(group):
            dialer, acceptor = max(rank, other), min(rank, other)
            wanted = at_start if everybody or (near and index == own_index) else late
            wanted += [Purpose(Role.DATA, dialer, acceptor, stream, world) for stream in range(streams)]
    if rank == mine[0]:
        parent, children = control_edges(number, groups)
        if parent is not None:
            at_start.append(Purpose(Role.CONTROL, rank, parent, world=world))
        at_start += [Purpose(Role.CONTROL, child, rank, world=world) for child in children]
    return at_start, late


def _power_of_two(*numbers: int) -> bool:
    """Return whether one of the numbers is a power of two."""
    return any(number & (number - 1) == 0 for number in numbers)


def _bound(host: str, port: int, *, reserved: bool) -> socket.socket:
    if is_number(host):
        family = int(socket.AF_INET6 if ":" in host else socket.AF_INET)
    else:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    bound = socket.socket(family)
    try:
        if not reserved:  # else somebody else could bind it, too, and listen first
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror} (at {host}, port {port})") from error
    bound.setblocking(False)
    return bound
