"""The addresses of this host: which exist, which of them other hosts may be able to reach, and in what order
to try.

Interfaces are asked of the kernel (rtnetlink(7)); nothing is sent to the network. Link-local addresses are
never offered, because they mean nothing without the name of an interface of the other host.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from horovod.errors import ConfigError

__all__ = ["Address", "is_number", "join_hosts", "loopback_addresses", "own_addresses", "split_hosts"]

_VIRTUAL = re.compile(
    r"(docker|br-|virbr|veth|vmnet|vboxnet|cni|flannel|cali|kube|podman|lxc|lxd|tun|tap|wg|zt)"
)
"""Interfaces of container networks, virtual machines and tunnels: seldom the way to another host."""

_BRIDGE = re.compile(r"(docker|br-|virbr|vmnet|vboxnet|cni|podman|lxcbr|lxdbr)")
"""Bridges of this host to its own containers and virtual machines: no way to another host."""

_MOST = 16
_DUMP_ADDRESSES = struct.pack("=IHHII", 20, 22, 0x301, 1, 0) + bytes(4)  # RTM_GETADDR, REQUEST | DUMP
_HEAD = struct.Struct("=IHHII")
_ADDRESS_HEAD = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_NEW_ADDRESS, _DONE, _ERROR = 20, 3, 2
_PEER, _LOCAL, _FLAGS = 1, 2, 8  # IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS
_SECONDARY = 0x01  # for IPv6: temporary
_NOT_USABLE = 0x08 | 0x20 | 0x40  # a duplicate, deprecated, tentative
_SIOCGIFFLAGS = 0x8913
_UP, _RUNNING = 0x1, 0x40

Number = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Address:
    """One address of this host: its number as text, the interface that has it, and its subnet."""

    host: str
    interface: str
    network: Network
    running: bool = True
    secondary: bool = False

    @property
    def number(self) -> Number:
        return ipaddress.ip_address(self.host)

    @property
    def loopback(self) -> bool:
        return self.number.is_loopback

    @property
    def rank(self) -> tuple[bool, bool]:
        """Sort key of addresses: the greater, the worse."""
        return bool(_VIRTUAL.match(self.interface)), self.secondary


def own_addresses(selection: str = "") -> list[Address]:
    """The addresses of this host that may serve for data between hosts, best first.

    Args:
        selection: comma list of names of interfaces and of subnets, as ``HOROVOD_GLOO_IFACE`` has it:
            ``eth1,10.1.0.0/16``. Hosts differ, so those that this one has count. Empty: all interfaces that
            are up and connected, but neither loopback nor, if there are others, bridges to containers.

    Raises:
        ConfigError: this host has nothing of the selection, or it is malformed.
        OSError: the kernel does not tell.
    """
    found = [address for address in _all() if not address.number.is_link_local]
    if selection:
        wanted = [part.strip() for part in selection.split(",") if part.strip()]
        chosen = [address for part in wanted for address in found if _matches(part, address)]
        if not chosen:
            raise ConfigError(_nothing(selection, found), variable="HOROVOD_GLOO_IFACE")
        return list(dict.fromkeys(chosen))[:_MOST]
    usable = [address for address in found if address.running and not address.loopback]
    outward = [address for address in usable if not _BRIDGE.match(address.interface)]
    return sorted(outward or usable, key=lambda address: address.rank)[:_MOST]


def loopback_addresses() -> list[Address]:
    """The addresses that only processes of this host reach, IPv4 first."""
    return [address for address in _all() if address.loopback]


def is_number(host: str) -> bool:
    """Return whether ``host`` is an address already, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def split_hosts(text: str) -> list[str]:
    """``10.0.0.1,[fd00::1],n1`` -> names and numbers without brackets. Raises ``ValueError``."""
    hosts = []
    for part in text.split(","):
        host = part.strip()
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or any(character in "[]" or character.isspace() for character in host):
            raise ValueError(f"{part!r} is no host")
        hosts.append(host)
    return hosts


def join_hosts(hosts: Sequence[str]) -> str:
    """The opposite of ``split_hosts``."""
    return ",".join(f"[{host}]" if ":" in host else host for host in hosts)


def _matches(part: str, address: Address) -> bool:
    if "/" not in part:
        return part == address.interface
    try:
        return address.number in ipaddress.ip_network(part, strict=False)
    except ValueError:
        raise ConfigError(
            f"HOROVOD_GLOO_IFACE: {part} is neither an interface nor a subnet such as 10.1.0.0/16.",
            variable="HOROVOD_GLOO_IFACE",
        ) from None


def _nothing(selection: str, found: Sequence[Address]) -> str:
    has: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for address in found:
        has.setdefault(address.interface, []).append(address.host)
    known = ", ".join(f"{name} ({' '.join(hosts) or 'no address'})" for name, hosts in sorted(has.items()))
    return (
        f"HOROVOD_GLOO_IFACE={selection}: host {socket.gethostname()} has no address of these interfaces or "
        f"subnets. It has: {known}."
    )


def _all() -> list[Address]:
    """Every usable address, IPv4 first, in the order of the kernel's interfaces."""
    found = []
    states: dict[str, int] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for family, prefix, flags, index, number in _dump():
            name = socket.if_indextoname(index)
            if name not in states:
                states[name] = _state(probe, name)
            if flags & _NOT_USABLE or not states[name] & _UP:
                continue
            host = socket.inet_ntop(family, number)
            network = ipaddress.ip_network(f"{host}/{prefix}", strict=False)
            running = bool(states[name] & _RUNNING)
            found.append(Address(host, name, network, running, bool(flags & _SECONDARY)))
    return sorted(found, key=lambda address: address.number.version)


def _state(probe: socket.socket, name: str) -> int:
    request = struct.pack("16sh14x", name.encode(), 0)
    return int(struct.unpack_from("16xH", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[0])


def _dump() -> Iterator[tuple[int, int, int, int, bytes]]:
    """Of every address: family, prefix length, flags, interface's index, number. Source: rtnetlink(7)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.bind((0, 0))
        kernel.send(_DUMP_ADDRESSES)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind = _HEAD.unpack_from(data)[:2]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, _HEAD.size)[0]
                    raise OSError(code, "the kernel does not list its addresses")
                if kind == _NEW_ADDRESS:
                    yield from _parse(data[_HEAD.size : length])
                data = data[length + -length % 4 :]


def _parse(body: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    family, prefix, flags, _, index = _ADDRESS_HEAD.unpack_from(body)
    attributes: dict[int, bytes] = {}
    rest = body[_ADDRESS_HEAD.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        attributes[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[max(length + -length % 4, _ATTRIBUTE.size) :]
    number = attributes.get(_LOCAL) or attributes.get(_PEER)
    if _FLAGS in attributes:
        flags = int.from_bytes(attributes[_FLAGS], "little")
    if number is not None and family in (socket.AF_INET, socket.AF_INET6):
        yield family, prefix, flags, index, number
