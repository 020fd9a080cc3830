"""News of changed hosts, on their way from the driver to the state objects of this process."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

from horovod.bootstrap.store.membership import HostUpdateResult, Leaving, Membership, next_news
from horovod.elastic.departure import Watch
from horovod.errors import HorovodInternalError
from horovod.runtime import lifecycle
from horovod.runtime.part import Part

__all__ = ["HostUpdateResult", "Listener", "WorkerNotificationManager", "notification_manager"]


_log = logging.getLogger("horovod")

_AGAIN_S = 60.0
"""Time within which the second loss of the driver is final."""


class Listener(Protocol):
    """Listener for messages of the driver; called from any thread."""

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Hosts have changed.

        Args:
            timestamp: when, in seconds since 1970.
            update_res: how, one of or several :class:`HostUpdateResult`.
        """


class WorkerNotificationManager:
    """Hands every message to all listeners. One per process: :data:`notification_manager`.

    Messages come from the driver of the job, to rank 0. A job without one has nobody who could send any: its
    hosts never change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []  # guarded by _lock
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Be ready for messages; may be called any number of times, and must be in every world: rank 0 alone
        listens, and the first rank of a host looks for a notice that it is to be taken away. The arguments
        are accepted because scripts pass them; the environment says who this is.
        """
        part = lifecycle.part()
        if part is None:
            return
        runtime = lifecycle.current()
        if runtime.config.preemption_notice and runtime.topology.local_rank == 0 and self._watch is None:
            self._watch = Watch(runtime.config.preemption_notice, lambda why: _leave(part.membership, why))
            self._watch.start()
        if runtime.topology.rank != 0:
            return
        if self._thread is None or not self._thread.is_alive():
            # A daemon: it waits as long as the job runs.
            self._thread = threading.Thread(
                target=self._listen, args=(part,), name="horovod-hosts", daemon=True
            )
            self._thread.start()

    def _listen(self, part: Part) -> None:
        number = part.news
        failed_at = -math.inf
        while True:
            reached = False
            try:
                with part.membership.connected() as store:
                    reached = True
                    while True:
                        news = next_news(store, number)
                        if number >= part.news:  # else it is older than the world
                            self.handle_hosts_updated(news.at, news.kind)
                        number += 1
            except HorovodInternalError as error:
                # A connection may break; where the driver is gone, the next one does not come about.
                may_come = reached and part.membership.waits
                if not may_come and time.monotonic() < failed_at + _AGAIN_S:
                    _log.warning("Rank 0 hears of no more changes of the hosts: %s", error)
                    return
                failed_at = time.monotonic()

    def register_listener(self, listener: Listener) -> None:
        """``listener`` gets messages from now on; a second registration changes nothing."""
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """``listener`` gets no more messages; harmless if it was not registered."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def handle_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Tell all listeners of a change.

        Args:
            timestamp: of the change, in UNIX seconds.
            update_res: its kind, see :class:`HostUpdateResult`.
        """
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


def _leave(membership: Membership, why: str) -> None:
    _log.warning("This host is to be taken away (%s): its ranks leave the job at the next commit.", why)
    try:
        membership.leave(Leaving(why, host=True))
    except HorovodInternalError as error:
        _log.warning("The driver cannot be told: %s", error)


notification_manager = WorkerNotificationManager()
