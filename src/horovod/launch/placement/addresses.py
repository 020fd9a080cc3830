"""Names that mean this machine, and addresses under which other hosts reach it."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Sequence

from horovod.bootstrap.place.addresses import own_addresses
from horovod.errors import ConfigError, LaunchError
from horovod.launch.placement.hosts import is_this_machine

__all__ = ["names_of_this_machine", "store_hosts"]

_LOOK_UP_S = 5.0


def names_of_this_machine(names: Sequence[str]) -> frozenset[str]:
    """Find the `names` that mean this machine. All are looked up at once; a name that nobody knows, or not
    soon, is elsewhere: it may be an alias in the user's ssh configuration.
    """
    here: set[str] = set()

    def look(name: str) -> None:
        try:
            if is_this_machine(name):
                here.add(name)
        except (LaunchError, ValueError):  # the latter: no name at all, as the resolver sees it
            pass  # the resolver does not know it; ssh may

    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _LOOK_UP_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return frozenset(here)


def store_hosts(interfaces: Sequence[str], seen: Sequence[str] = ()) -> list[str]:
    """The addresses of this machine to serve ranks of other hosts at, best first; never all there are.

    Args:
        interfaces: names or subnets of the only ones that may be used; empty: any. A machine that has none of
            them, as it takes no part in the job itself, is served at the addresses that are ``seen``.
        seen: addresses under which other hosts know this machine. Where one of them is not ours (a router
            stands between), or none is given, all usable addresses are offered: ranks try them.

    Raises:
        ConfigError: this machine has none of these interfaces, and no address is seen.
        LaunchError: this machine has no address that others could reach.
    """
    known = [address for address in dict.fromkeys(seen) if address and _is_ours(address)]
    if interfaces:
        try:
            return [address.host for address in own_addresses(",".join(interfaces))]
        except ConfigError:
            if not known:
                raise
    # Ranks of other hosts cannot reach a loopback address; those that saw one are on this machine.
    reachable = [address for address in known if not ipaddress.ip_address(address).is_loopback]
    if known and len(known) == len(set(seen)):
        return reachable or known
    found = [*reachable, *(address.host for address in own_addresses())]
    if not found:
        raise LaunchError(
            "This machine has no address that other hosts could reach: no interface is up except loopback."
        )
    return list(dict.fromkeys(found))


def _is_ours(address: str) -> bool:
    """True if `address` is one of this machine. Other hosts may claim anything, even "every interface"."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return False
    if number.is_unspecified or number.is_multicast:
        return False
    family = socket.AF_INET if number.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:  # not ours, or an IPv6 address that means nothing without its interface
        return False
    return True
