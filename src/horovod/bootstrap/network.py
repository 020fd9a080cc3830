"""Where a rank listens for ranks of other groups, and which connections it needs."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

from horovod.bootstrap.groups import control_parent
from horovod.bootstrap.handshake import Purpose, Role
from horovod.errors import ConfigError

__all__ = ["connections_of", "interface_address", "listen"]

_SIOCGIFADDR = 0x8915
_INTERFACE_NAME_BYTES = 15


def listen(host: str) -> socket.socket:
    """A TCP socket on ``host``, a number, and on no other interface; any free port.

    The backlog is long, so that strangers do not fill it before the ranks come.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=4096)
    listener.setblocking(False)
    return listener


def interface_address(names: str) -> str:
    """The IPv4 address of the first interface in the comma list ``names``.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    name = names.split(",")[0].strip()
    request = struct.pack("256s", name.encode()[:_INTERFACE_NAME_BYTES])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError as error:
        known = ", ".join(sorted(known for _, known in socket.if_nameindex()))
        raise ConfigError(
            f"HOROVOD_GLOO_IFACE={names}: interface {name} has no IPv4 address ({error.strerror}). "
            f"This host has: {known}.",
            variable="HOROVOD_GLOO_IFACE",
        ) from error


def connections_of(rank: int, groups: Sequence[Sequence[int]], world: bytes) -> list[Purpose]:
    """Every network connection that ``rank`` takes part in: the higher rank dials, the lower one accepts.

    One data connection for each rank of another group, and a control connection for each edge of the control
    tree that leaves the group.
    """
    mine = next(group for group in groups if rank in group)
    others = [other for group in groups if group is not mine for other in group]
    purposes = []
    for other in others:
        dialer, acceptor = max(rank, other), min(rank, other)
        purposes.append(Purpose(Role.DATA, dialer, acceptor, world=world))
    leaders = [group[0] for group in groups]
    if rank in leaders:
        parents = {leader: control_parent(leader, groups) for leader in leaders}
        for leader, parent in parents.items():
            if parent is not None and rank in (leader, parent):
                purposes.append(Purpose(Role.CONTROL, leader, parent, world=world))
    return purposes
