"""News of changed hosts, on their way from the driver to the state objects of this process."""

from __future__ import annotations

import enum
import threading
from typing import Protocol

__all__ = ["HostUpdateResult", "Listener", "WorkerNotificationManager", "notification_manager"]


class HostUpdateResult(enum.IntFlag):
    """What changed about the hosts; changes add up by ``|``."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """Who wants to know; called from any thread."""

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Hosts have changed.

        Args:
            timestamp: when, in seconds since 1970.
            update_res: how, one of or several :class:`HostUpdateResult`.
        """


class WorkerNotificationManager:
    """Hands every message to all listeners. One per process: :data:`notification_manager`.

    A job without a driver has nobody who could send messages: its hosts never change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []  # guarded by _lock

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Be ready for messages; may be called any number of times.

        There is no driver yet that would send any, so nothing is served: hosts stay what they are.
        """

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


notification_manager = WorkerNotificationManager()
