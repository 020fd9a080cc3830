"""What the ranks of a host print, where the launcher is on another one."""

from __future__ import annotations

import os
import select

from horovod.launch.agent.requests import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.launcher import Launcher


class Outputs:
    """What the ranks of this host print, on its way to the launcher on another one."""

    def __init__(self, launcher: Launcher, poller: select.poll) -> None:
        self._launcher = launcher
        self._poller = poller
        self._open: dict[int, tuple[int, str]] = {}  # descriptor -> rank and stream
        self._credit = 0
        self._sent = 0  # beyond what the launcher has taken

    def add(self, rank: int, stream: str) -> int:
        """A new pipe; returns the end that the rank writes to."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._open[read_end] = (rank, stream)
        if self._credit > 0:
            self._poller.register(read_end, select.POLLIN)
        return write_end

    def take(self, count: int) -> None:
        """The launcher has forwarded `count` bytes, and has room for as many.

        Raises:
            Refusal: they were not sent.
        """
        if count > self._sent:
            raise Refusal(f"{count} bytes were taken of {self._sent}")
        self._sent -= count
        self.allow(count)

    def allow(self, count: int) -> None:
        """The launcher has room for `count` bytes more."""
        if self._credit <= 0 < self._credit + count:
            for descriptor in self._open:
                self._poller.register(descriptor, select.POLLIN)
        self._credit += count

    def forward(self, descriptor: int) -> bool:
        """Send what is there; whether there was something."""
        if descriptor not in self._open or self._credit <= 0:
            return False
        rank, stream = self._open[descriptor]
        try:
            data = os.read(descriptor, min(1 << 16, self._credit))
        except BlockingIOError:
            return False
        if not data:
            self._close(descriptor)
            return False
        self._credit -= len(data)
        self._sent += len(data)
        if self._credit <= 0:
            for waiting in self._open:
                self._poller.unregister(waiting)
        self._launcher.say("output", rank=rank, stream=stream, size=len(data))
        self._launcher.send(data)
        return True

    def drained(self, rank: int | None = None) -> bool:
        """Forward what is left in the pipes, of one rank or of all; whether that was all, and then they are
        closed. A stranger may hold one open.
        """
        self.empty(rank)
        if self._credit <= 0 and self._of(rank):
            return False
        for descriptor in self._of(rank):
            self._close(descriptor)
        return True

    def empty(self, rank: int | None = None) -> None:
        """Forward what is in the pipes now, as far as the launcher has room."""
        for descriptor in self._of(rank):
            while self.forward(descriptor):
                pass

    def _of(self, rank: int | None) -> list[int]:
        return [each for each, (other, _) in self._open.items() if rank is None or other == rank]

    def _close(self, descriptor: int) -> None:
        del self._open[descriptor]
        if self._credit > 0:
            self._poller.unregister(descriptor)
        os.close(descriptor)
