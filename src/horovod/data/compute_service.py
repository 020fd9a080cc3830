"""A registry of dispatchers and their workers. There the processes of a compute job, which prepare data, and
those of a training job, which use the data, find each other.

The registry is a store (``bootstrap/store/server.py``) with a key of its own. Nothing is parsed of a
client that has not proved the key, and what is parsed is JSON. The keys in it:

    settings                          {dispatchers, workers}: how many there are, and workers of each
    dispatcher/<number>/address       what the training job connects to
    dispatcher/<number>/worker/<id>   the worker is there; one set for each dispatcher
    shutdown                          the compute job shall end
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from horovod.bootstrap.place.addresses import join_hosts, loopback_addresses, own_addresses
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.server import StoreServer
from horovod.errors import AuthenticationError, InvalidArgumentError, RendezvousError, StoreTimeout

__all__ = ["Addresses", "ComputeClient", "ComputeService"]

Addresses = Mapping[str, Sequence[tuple[str, int]]]
"""Host and port of a service on each of its interfaces."""

_PATIENCE_S = 20.0
"""Time that one question for the end waits; a service whose host is gone is noticed a little later."""


class ComputeService:
    """Serves the registry of one compute job from construction until ``shutdown``; a context manager.

    Args:
        dispatchers: how many, numbered from 0.
        workers_per_dispatcher: how many workers each of them has.
        key: at least 16 random bytes; whoever has them may register and end the job.
        nics: names or subnets of the interfaces to listen on; ``None``: all that other hosts may reach, or
            loopback if there is none.

    Raises:
        ValueError: a number is not positive.
        ConfigError: none of ``nics`` exists here.
    """

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Sequence[str] | None = None
    ) -> None:
        if dispatchers < 1 or workers_per_dispatcher < 1:
            raise InvalidArgumentError(
                f"A compute job needs dispatchers and workers, not {dispatchers} with "
                f"{workers_per_dispatcher} each."
            )
        found = own_addresses(",".join(nics or ())) or loopback_addresses()
        self._server = StoreServer(key, [address.host for address in found])
        self._addresses: dict[str, list[tuple[str, int]]] = {}
        for address, place in zip(found, self._server.addresses, strict=True):
            self._addresses.setdefault(address.interface, []).append(place)
        self._server.start()
        with StoreClient(self._server.addresses, key, _PATIENCE_S, "the compute service") as store:
            store.set("settings", {"dispatchers": dispatchers, "workers": workers_per_dispatcher})

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Host and port on each interface."""
        return self._addresses

    def shutdown(self) -> None:
        """Stop serving. Idempotent."""
        self._server.stop()

    def __enter__(self) -> ComputeService:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class ComputeClient:
    """Asks the registry; every request is a connection of its own, so threads may share a client.

    Args:
        compute_addresses: of the service; those that work are found by trying.
        key: of the service.
        verbose: kept for scripts, means nothing.
        timeout_s: for connecting.
        identity: who this is, for messages.

    Every method raises ``AuthenticationError`` if the service has another key, and ``RendezvousError`` if it
    is not there or goes away.
    """

    def __init__(
        self,
        compute_addresses: Addresses,
        key: bytes,
        verbose: int = 1,
        *,
        timeout_s: float = 60.0,
        identity: str = "",
    ) -> None:
        self._places = [(host, port) for places in compute_addresses.values() for host, port in places]
        self._key = key
        self._timeout_s = timeout_s
        self._identity = identity or f"process {os.getpid()} on host {socket.gethostname()}"

    def place(self, port: int | str) -> str:
        """``host:port`` for others to find a port of this machine by: on the interface that reaches the
        service."""
        with self._store() as store:
            return f"{join_hosts([store.local_host()])}:{port}"

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Say where a dispatcher is; saying the same again changes nothing.

        Raises:
            IndexError: there is no such dispatcher.
            ValueError: it is somewhere else already.
        """
        with self._store() as store:
            self._check(store, dispatcher_id)
            key = f"dispatcher/{dispatcher_id}/address"
            stored, known = store.compare_and_set(key, None, dispatcher_address)
        if not stored and known != dispatcher_address:
            raise InvalidArgumentError(
                f"{self._identity} cannot register dispatcher {dispatcher_id} at {dispatcher_address}: it is "
                f"at {known} already. Does another training job use this compute job?"
            )

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The address of a dispatcher, once it is known.

        Raises:
            IndexError: there is no such dispatcher.
            StoreTimeout: it did not register within ``timeout`` seconds.
        """
        with self._store() as store:
            self._check(store, dispatcher_id)
            try:
                return str(store.get(f"dispatcher/{dispatcher_id}/address", timeout))
            except StoreTimeout as error:
                raise StoreTimeout(
                    f"{self._identity} waited {timeout:g} s for dispatcher {dispatcher_id} to register, in "
                    "vain. It is started by the job that --dispatcher-side names: look at the output of that "
                    "job, or raise --timeout.",
                    keys=error.keys,
                    waited_s=error.waited_s,
                ) from error

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Say that a worker of a dispatcher runs; saying it again changes nothing.

        Raises:
            IndexError: there is no such dispatcher.
        """
        with self._store() as store:
            self._check(store, dispatcher_id)
            store.set(f"dispatcher/{dispatcher_id}/worker/{worker_id}", True)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Return when all workers of a dispatcher run.

        Raises:
            IndexError: there is no such dispatcher.
            StoreTimeout: some did not register within ``timeout`` seconds.
        """
        with self._store() as store:
            workers = self._check(store, dispatcher_id)
            prefix = f"dispatcher/{dispatcher_id}/worker/"
            try:
                store.collect(prefix, workers, timeout)
            except StoreTimeout as error:
                present = ", ".join(sorted(store.collect(prefix, 0, 0.0), key=int)) or "none"
                raise StoreTimeout(
                    f"{self._identity} waited {timeout:g} s for the {workers} workers of dispatcher "
                    f"{dispatcher_id} to register, in vain. Of the ranks of the compute job came: {present}. "
                    "Look at the output of the others, or raise --timeout.",
                    keys=error.keys,
                    waited_s=error.waited_s,
                ) from error

    def shutdown(self) -> None:
        """End the compute job."""
        with self._store() as store:
            store.set("shutdown", True)

    def wait_for_shutdown(self) -> None:
        """Return when somebody ends the compute job; that may take as long as a training."""
        with self._store() as store:
            while True:
                try:
                    store.get("shutdown", _PATIENCE_S)
                    return
                except StoreTimeout:
                    pass  # the service is alive

    def _check(self, store: StoreClient, dispatcher_id: int) -> int:
        """The number of workers of each dispatcher. Raises ``IndexError`` without such a dispatcher."""
        settings = store.get("settings", _PATIENCE_S)
        count = int(settings["dispatchers"])
        if not 0 <= dispatcher_id < count:
            raise IndexError(
                f"There is no dispatcher {dispatcher_id}: the compute job has {count}, numbered from 0. Of "
                "several, each belongs to one rank of the training job."
            )
        return int(settings["workers"])

    @contextmanager
    def _store(self) -> Iterator[StoreClient]:
        try:
            store = StoreClient(self._places, self._key, self._timeout_s, self._identity)
        except RendezvousError as error:
            places = join_hosts([host for host, _ in self._places])
            reason = "" if isinstance(error, AuthenticationError) else f" {error}"  # of other keys than ours
            raise type(error)(
                f"{self._identity} does not find the service of the compute job at {places} port "
                f"{self._places[0][1]}. Does the job still run, can this host reach it, and is the "
                f"configuration file that of this run?{reason}"
            ) from error
        with store:
            yield store
