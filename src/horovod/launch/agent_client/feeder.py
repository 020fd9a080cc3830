"""Standard input on its way to a rank of another host."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

__all__ = ["Feeder"]

_ROOM_BYTES = 1 << 18
_PIECE_BYTES = 1 << 16


class Feeder:
    """Reads `source` in a thread of its own and hands pieces to `send`; an empty one is the end.

    No more is read than the rank has room for: one that never reads leaves the rest where it is.
    """

    def __init__(self, source: int, send: Callable[[bytes], None]) -> None:
        self._source = source
        self._send = send
        self._room_bytes = _ROOM_BYTES
        self._lock = threading.Lock()  # guards _room_bytes and _over
        self._over = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="standard input", daemon=True)
        self._thread.start()

    def make_room(self, size_bytes: int) -> None:
        """The rank's pipe has taken so much."""
        with self._lock:
            self._room_bytes += size_bytes
            if not self._over:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Read no more. Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = True
            os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._bell)

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                room = self._room_bytes
            poller = select.poll()  # jobs with many hosts have descriptors beyond what `select` takes
            for descriptor in (self._bell, *([self._source] if room else [])):
                poller.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._bell in ready:
                os.eventfd_read(self._bell)
            if self._source not in ready or self._over:
                continue
            try:
                data = os.read(self._source, min(room, _PIECE_BYTES))
            except OSError:  # nothing can be read there, as under nohup
                data = b""
            with self._lock:
                self._room_bytes -= len(data)
            self._send(data)
            if not data:
                return
