"""The server at which ranks meet that a launcher of the user's own has started.

Its name is from the interface that such launchers are written for. It speaks no HTTP: it is the store of a
job (:mod:`horovod.bootstrap.store.server`), where every connection proves the key of the job.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from horovod.bootstrap.place.addresses import loopback_addresses, own_addresses
from horovod.bootstrap.place.descriptors import make_room
from horovod.bootstrap.store.rounds import announce_plan
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.secret import key_of_port
from horovod.config import Config
from horovod.errors import LaunchError

__all__ = ["RendezvousServer"]


class RendezvousServer:
    """The server where the ranks of one job meet. A launcher starts it, and its ranks with the address of
    this host in ``HOROVOD_GLOO_RENDEZVOUS_ADDR``, the port in ``HOROVOD_GLOO_RENDEZVOUS_PORT``, and their
    places (``HOROVOD_RANK``, ``HOROVOD_SIZE`` ...); see :mod:`horovod.runner.gloo_run`.

    The key is ``HOROVOD_SECRET_KEY`` of this process, which then has to be in the environment of every rank;
    if it is not set, ranks and server make it from the user's key file (``~/.config/farandole/key``) and the
    port.

    Args:
        verbose: accepted; what the server has to say goes to the log.
    """

    def __init__(self, verbose: int = 0) -> None:
        self._store: StoreServer | None = None
        self._plans = 0

    @property
    def listen_port(self) -> int | None:
        """The port, once it is started."""
        return None if self._store is None else self._store.address[1]

    @property
    def store(self) -> StoreServer:
        """The store that is served.

        Raises:
            LaunchError: it is not started.
        """
        if self._store is None:
            raise LaunchError("The RendezvousServer is not started: call its start() first.")
        return self._store

    def start(self, handler_cls: Any = None) -> int:
        """Begin to serve, on a thread of its own. Returns the port.

        It listens on the interfaces that ``HOROVOD_GLOO_IFACE`` names, by default on all that other hosts
        may reach, and on loopback.

        Args:
            handler_cls: there are no handlers here; ``None``.

        Raises:
            LaunchError: it is started already.
            ConfigError: there is no key, or no such interface.
        """
        if handler_cls is not None:
            raise NotImplementedError(
                "RendezvousServer has no handlers: ElasticDriver(rendezvous, ...) hears of workers without."
            )
        if self._store is not None:
            raise LaunchError("The RendezvousServer is started already. One serves one job.")
        config = Config.from_environ(os.environ)
        self._store = StoreServer(
            lambda port: key_of_port(os.environ, port), _hosts(config.network_interface), job=config.job_id
        )
        self._store.start()
        return self._store.address[1]

    def init(self, host_alloc_plan: Sequence[Any]) -> None:
        """Make ready for the ranks of a plan, of ``get_host_assignments``. Once for each world: a further
        plan deals out the ranks anew, to processes that live, call ``shutdown()``, set their variables and
        call ``init()`` again, and to new ones. Who still waits for the world of the plan before gets an
        error.

        Raises:
            BackendError: this process may not open so many files.
        """
        make_room(len(host_alloc_plan), f"RendezvousServer: the store of {len(host_alloc_plan)} ranks")
        self._plans += 1
        if self._store is not None:
            announce_plan(self._store, self._plans, len(host_alloc_plan))

    def stop(self) -> None:
        """End it. Ranks that have met need it no more, until they form another world. Idempotent."""
        if self._store is not None:
            self._store.stop()
            self._store = None
            self._plans = 0


def _hosts(interfaces: str) -> list[str]:
    """The addresses to listen on. A launcher may tell its ranks any of them, also what the name of this host
    means here, which is a loopback address on some systems."""
    found = [*own_addresses(interfaces), *loopback_addresses()]
    try:
        named = [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    except OSError:  # a host whose name nobody knows
        named = []
    loopback = [str(host) for host in named if str(host).startswith("127.")]
    return list(dict.fromkeys([*(address.host for address in found), *loopback]))
