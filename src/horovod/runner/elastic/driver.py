"""The driver of elastic jobs, for launchers of one's own; :mod:`horovod.launch.elastic` does the work."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from horovod.config import value_of
from horovod.errors import LaunchError
from horovod.launch.elastic.discovery import HostDiscovery
from horovod.launch.elastic.hosts import checked_cooldown
from horovod.launch.elastic.rules import Rules
from horovod.launch.elastic.threads import Assignment, SlotsTimeout, ThreadJob
from horovod.launch.environment import rank_silence_s
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, SlotInfo
from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.http.http_server import RendezvousServer

__all__ = ["ElasticDriver", "Results", "WorkerClient"]

_SUCCESS_S = 5.0
"""Workers that report by ``record_ready`` are not seen to leave a world: how long they may take after the
first that has succeeded."""


@dataclass(frozen=True)
class Results:
    """Results of a job that has ended.

    Attributes:
        worker_results: exit code and time (UNIX seconds) of each worker of the last world, by ``host[slot]``.
        error_message: why the job has failed, if not because of a worker; else None.
    """

    worker_results: dict[str, tuple[int, float]] = field(default_factory=dict)
    error_message: str | None = None


@dataclass(frozen=True)
class WorkerClient:
    """Tells a worker about changed hosts.

    Attributes:
        addresses: as they were registered, None: they were not.
        secret_key: the same.
    """

    job: ThreadJob = field(repr=False)
    addresses: Any = None
    secret_key: Any = field(default=None, repr=False)

    def notify_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """The hosts have changed: when, in UNIX seconds, and how (``HostUpdateResult``).

        Raises:
            LaunchError: the worker cannot be told.
        """
        if hasattr(self.addresses, "handle_hosts_updated"):
            self.addresses.handle_hosts_updated(timestamp, update_res)
        elif not self.job.publish(timestamp, int(update_res)):
            raise LaunchError(
                "This worker cannot be told about changed hosts: the ElasticDriver has no RendezvousServer, "
                "and no WorkerNotificationManager was registered for it. Override get_worker_client."
            )


class ElasticDriver:
    """Decides which workers of an elastic job run; how one is started is up to a function of the program's.

    With a :class:`horovod.runner.http.http_server.RendezvousServer` workers are processes that report
    through it, as those of ``horovodrun``: their environment is that of ``create_slot_env_vars(slot_info)``
    and ``create_run_env_vars(..., elastic=True)``. Those on new hosts prepare while the others train. With
    anything else in its place, workers report by :meth:`record_ready` and learn their places by
    :meth:`get_slot_info`, and those on new hosts count from the next world on.

    A worker that fails costs its whole host.

    Args:
        rendezvous: the server where workers meet, started before :meth:`start`. If it has a method ``init``,
            that is called with the ``SlotInfo`` of all ranks for each world.
        discovery: says which hosts there are; asked once a second.
        min_num_proc: ranks of a world after the first.
        max_num_proc: ranks of any world; None: as many as there are slots.
        timeout: how many seconds enough slots are waited for; by default ``HOROVOD_ELASTIC_TIMEOUT``.
        reset_limit: how often the world may change; None: any number of times.
        cooldown_range: for how many seconds a failed host is left out, from and to; None: for ever.
        verbose: accepted; what happens goes to the log ``horovod``, at the level INFO.

    Raises:
        ValueError: the range is none from 1 to 3600 seconds.
    """

    def __init__(
        self,
        rendezvous: Any,
        discovery: HostDiscovery,
        min_num_proc: int,
        max_num_proc: int | None,
        timeout: float | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        verbose: int = 0,
    ) -> None:
        self._rendezvous = rendezvous
        self._least = min_num_proc
        self._most = max_num_proc
        self._reset_limit = reset_limit
        self._timeout_s: float = value_of("elastic_timeout_s", os.environ) if timeout is None else timeout
        self._cooldown_s = checked_cooldown(cooldown_range)
        self._servers: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._job = ThreadJob(discovery, self._timeout_s, self._cooldown_s, self._notify, self._assigned)

    def start(
        self,
        num_proc: int,
        create_worker_fn: Callable[[SlotInfo, list[threading.Event]], tuple[int, float]],
    ) -> None:
        """Wait for ``num_proc`` slots, and start a worker in each slot that there is then.

        Args:
            num_proc: at least ``min_num_proc``.
            create_worker_fn: runs one worker until it ends, and returns its exit code and the time (UNIX
                seconds). It is called on a thread for each worker, with the place of the worker and two
                events: it has to end the worker when one of them is set.

        Raises:
            ConfigError: the numbers contradict each other.
            TimeoutException: there are not enough slots for too long.
            RuntimeError: the hosts cannot be found out, or the driver was stopped.
        """
        store = None
        if isinstance(self._rendezvous, RendezvousServer):
            store = self._rendezvous.store
        rules = Rules(
            processes=num_proc,
            least=self._least,
            most=self._most,
            slots_wait_s=self._timeout_s,
            reset_limit=self._reset_limit,
            cooldown_s=self._cooldown_s,
            by_slot=False,
            lost_s=rank_silence_s({}, os.environ) or math.inf,
            at_once=store is None,
            success_s=_SUCCESS_S if store is None else None,
        )
        try:
            self._job.start(rules, lambda worker, events: create_worker_fn(_slot_info(worker), events), store)
        except SlotsTimeout as error:
            raise TimeoutException(str(error)) from error

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> dict[str, int]:
        """Wait until there are so many slots, on so many hosts; returns the slots by host. Raises as
        :meth:`start`.
        """
        try:
            return self._job.wait_for(min_num_proc, min_hosts)
        except SlotsTimeout as error:
            raise TimeoutException(str(error)) from error

    def resume(self) -> None:
        """Wait until a world trains. The driver forms the next one by itself, when all workers of the old one
        have reported.

        Raises:
            RuntimeError: the job is over.
        """
        self._job.resume()

    def stop(self, error_message: str | None = None) -> None:
        """End all workers. Does not wait for them: :meth:`get_results` does.

        Args:
            error_message: why the job has failed; None: it has not.
        """
        self._job.stop(error_message or "")

    def finished(self) -> bool:
        """True once the job is over: all workers have ended, or are told to."""
        return self._job.finished()

    def get_results(self) -> Results:
        """Wait until all workers have ended.

        Raises:
            RuntimeError: the driver was not started.
        """
        ended, error = self._job.results()
        by_name = {f"{host}[{slot}]": (end.exit_code, end.at) for (host, slot), end in ended.items()}
        return Results(by_name, error or None)

    def record_ready(self, host: str, slot: int) -> None:
        """The worker in a slot wants to be in the next world. On the thread of its ``create_worker_fn`` this
        returns when it has its place, or none any more; otherwise at once.
        """
        self._job.ready(host, slot)

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        """The place of a slot in the present world; if its worker has reported, that in the next one, when it
        is formed. A slot that is in no world has rank -1.
        """
        place = self._job.place(host, slot)
        return INVALID_SLOT_INFO if place is None else _slot_info(place)

    def get_coordinator_info(self) -> SlotInfo | None:
        """The place of rank 0; None: there is no world yet."""
        world = self._job.world()
        return _slot_info(world[0]) if world else None

    def has_rank_assignment(self, host: str, slot: int) -> bool:
        """True while a slot is in the present world, and its host in use."""
        found = any((each.host, each.index) == (host, slot) for each in self._job.world())
        return found and not self._job.is_blacklisted(host)

    def world_size(self) -> int:
        """Ranks of the present world; 0: there is none yet."""
        return len(self._job.world())

    def local_size(self, host: str) -> int:
        """Ranks of the present world on a host."""
        return sum(each.host == host for each in self._job.world())

    def register_worker_server(self, host: str, slot: int, addresses: Any, secret_key: Any) -> None:
        """Register a way to tell the worker in a slot about changed hosts. Workers that report through a
        ``RendezvousServer`` hear of them there, and need no server.

        Args:
            addresses: the ``WorkerNotificationManager`` of a worker that is a thread of this process;
                anything else is kept for a :meth:`get_worker_client` of the program's own.
            secret_key: kept in the same way.
        """
        self._servers[host, slot] = (addresses, secret_key)

    def get_worker_client(self, slot_info: SlotInfo) -> WorkerClient | None:
        """Client that tells the worker in a slot about changed hosts; None: nothing does. The driver asks for
        the client of rank 0, if it has no ``RendezvousServer``: programs may override this.
        """
        slot = (slot_info.hostname, slot_info.local_rank)
        if slot in self._servers:
            return WorkerClient(self._job, *self._servers[slot])
        by_store = isinstance(self._rendezvous, RendezvousServer) and self._job.has_worker(*slot)
        return WorkerClient(self._job) if by_store else None

    def _notify(self, timestamp: int, update_res: int) -> None:
        coordinator = self.get_coordinator_info()
        client = None if coordinator is None else self.get_worker_client(coordinator)
        if client is not None:
            client.notify_hosts_updated(timestamp, update_res)

    def _assigned(self, world: list[Assignment]) -> None:
        if hasattr(self._rendezvous, "init"):
            self._rendezvous.init([_slot_info(each) for each in world])


def _slot_info(assignment: Assignment) -> SlotInfo:
    rank, size, local_rank, local_size, cross_rank, cross_size = assignment.place
    return SlotInfo(
        assignment.host, rank, local_rank, cross_rank, size, local_size, cross_size, assignment.worker
    )
