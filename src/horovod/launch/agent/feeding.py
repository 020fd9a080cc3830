"""The standard input of a rank, where the launcher is on another host."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.launcher import Launcher


class Feed:
    """Bytes from the launcher for the standard input of one rank: never more than it was told there is room
    for, as a rank need not read.
    """

    def __init__(self, launcher: Launcher, poller: select.poll) -> None:
        self._launcher = launcher
        self._poller = poller
        self._pending = bytearray()
        self._ended = False  # the launcher has sent all
        self._waits = False
        self._write = -1

    def fileno(self) -> int:
        """Descriptor on which `flush` waits for room; -1: closed."""
        return self._write

    def begin(self) -> int:
        """Returns the end that the rank reads from."""
        read_end, self._write = os.pipe()
        os.set_blocking(self._write, False)
        return read_end

    def put(self, data: bytes) -> None:
        """The next of it; empty: the end."""
        self._ended = self._ended or not data
        if self._write >= 0:
            self._pending += data
            self.flush()

    def flush(self) -> None:
        """Write what fits, and say how much that was. Of a rank that reads no more nothing is said: so the
        launcher sends no more either.
        """
        before = len(self._pending)
        try:
            while self._pending:
                del self._pending[: os.write(self._write, self._pending)]
        except BlockingIOError:
            pass
        except OSError:  # the rank has ended, or has closed it
            self._close()
            return
        if len(self._pending) < before:
            self._launcher.say("input_taken", size=before - len(self._pending))
        if self._pending and not self._waits:
            self._poller.register(self._write, select.POLLOUT)
        elif self._waits and not self._pending:
            self._poller.unregister(self._write)
        self._waits = bool(self._pending)
        if self._ended and not self._pending:
            self._close()

    def _close(self) -> None:
        if self._waits:
            self._poller.unregister(self._write)
            self._waits = False
        self._pending.clear()
        os.close(self._write)
        self._write = -1
