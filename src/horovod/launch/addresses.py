"""Which names mean this machine, and under which addresses other hosts reach it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from horovod.errors import LaunchError
from horovod.launch.hosts import is_this_machine

__all__ = ["names_of_this_machine", "store_hosts"]


def names_of_this_machine(names: Sequence[str]) -> frozenset[str]:
    """Those of `names` that mean this machine. All are looked up at once; what nobody knows is elsewhere: it
    may be an alias in the user's ssh configuration.
    """
    here: set[str] = set()

    def look(name: str) -> None:
        try:
            if is_this_machine(name):
                here.add(name)
        except LaunchError:
            pass  # the resolver does not know it; ssh may

    if len(names) == 1:
        look(names[0])
    else:
        threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return frozenset(here)


def store_hosts(interfaces: Sequence[str], seen: Sequence[str] = ()) -> list[str]:
    """The addresses of this machine to serve ranks of other hosts at, best first.

    Args:
        interfaces: the only ones that may be used; empty: any.
        seen: addresses under which other hosts know this machine; those that are not ours (a router may
            stand between) are left out.
    """
    return [address for address in dict.fromkeys(seen) if address and _is_ours(address)] or ["0.0.0.0"]


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
