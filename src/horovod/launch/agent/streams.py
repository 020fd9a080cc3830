"""Standard streams of a host's ranks, where the launcher is on another host."""

from __future__ import annotations

import collections
import os
import select

from horovod.launch.agent.requests import Refusal
from horovod.launch.agent.terms import MOST_KEPT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.launcher import Launcher

_PIECE_BYTES = 1 << 16


class Outputs:
    """Output of this host's ranks, on its way to the launcher on another host."""

    def __init__(self, launcher: Launcher, poller: select.poll) -> None:
        self._launcher = launcher
        self._poller = poller
        self._open: dict[int, tuple[int, str]] = {}  # descriptor -> rank and stream
        self._credit = 0
        self._sent = 0  # beyond what the launcher has taken
        self._untaken: collections.deque[tuple[int, str, bytes]] | None = None  # that; None: it is of no use
        self._watched = False
        self._keeping = False  # no launcher is there
        self._kept: collections.deque[tuple[int, str, bytes]] = collections.deque()
        self._kept_bytes = 0
        self._lost_bytes = 0

    def add(self, rank: int, stream: str) -> int:
        """A new pipe; returns the end that the rank writes to."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._open[read_end] = (rank, stream)
        if self._watched:
            self._poller.register(read_end, select.POLLIN)
        return write_end

    def remember(self) -> None:
        """From now on keep what the launcher has not taken yet: it may be lost with it."""
        self._untaken = collections.deque()

    def keep(self) -> None:
        """The launcher is gone: ranks go on printing, and it is kept, as far as there is room."""
        self._keeping = True
        self._watch()

    def change(self, window: int) -> None:
        """Another launcher is there, and has room for `window` bytes: first for what the one before had not
        taken, which all fits, then for what was kept.
        """
        self._credit, self._sent = window, 0
        while self._untaken:
            self._kept.appendleft(self._untaken.pop())
            self._kept_bytes += len(self._kept[0][2])
        self.come_back()

    def come_back(self) -> None:
        """The launcher is there again: it gets what was kept."""
        self._keeping = False
        if self._lost_bytes:
            self._launcher.say("output_lost", size=self._lost_bytes)
            self._lost_bytes = 0
        self._send_kept()
        self._watch()

    def take(self, count: int) -> None:
        """The launcher has forwarded `count` bytes, and has room for as many.

        Raises:
            Refusal: they were not sent.
        """
        if count > self._sent:
            raise Refusal(f"{count} bytes were taken of {self._sent}")
        self._sent -= count
        left = count
        while self._untaken and left:
            rank, stream, data = self._untaken.popleft()
            if len(data) > left:
                self._untaken.appendleft((rank, stream, data[left:]))
            left -= min(left, len(data))
        self.allow(count)

    def allow(self, count: int) -> None:
        """The launcher has room for `count` bytes more."""
        self._credit += count
        self._send_kept()
        self._watch()

    def forward(self, descriptor: int) -> bool:
        """Send what is there; whether there was something."""
        if descriptor not in self._open or not self._may_read():
            return False
        rank, stream = self._open[descriptor]
        try:
            data = os.read(descriptor, _PIECE_BYTES if self._keeping else min(_PIECE_BYTES, self._credit))
        except BlockingIOError:
            return False
        if not data:
            self._close(descriptor)
            return False
        if self._keeping:
            self._keep(rank, stream, data)
        else:
            self._send(rank, stream, data)
            self._watch()
        return True

    def drained(self, rank: int | None = None) -> bool:
        """Forward what is left in the pipes, of one rank or of all; whether that was all, and then they are
        closed. A stranger may hold one open.
        """
        self.empty(rank)
        if not self._may_read() and self._of(rank):
            return False
        for descriptor in self._of(rank):
            self._close(descriptor)
        return not self._has_kept(rank)

    def empty(self, rank: int | None = None) -> None:
        """Forward what is in the pipes now, as far as the launcher has room."""
        for descriptor in self._of(rank):
            while self.forward(descriptor):
                pass

    def _of(self, rank: int | None) -> list[int]:
        return [each for each, (other, _) in self._open.items() if rank is None or other == rank]

    def _close(self, descriptor: int) -> None:
        del self._open[descriptor]
        if self._watched:
            self._poller.unregister(descriptor)
        os.close(descriptor)

    def _may_read(self) -> bool:
        return self._keeping or (self._credit > 0 and not self._kept)

    def _watch(self) -> None:
        """Look at the pipes if they may be read, else not."""
        if self._watched == self._may_read():
            return
        self._watched = not self._watched
        for descriptor in self._open:
            if self._watched:
                self._poller.register(descriptor, select.POLLIN)
            else:
                self._poller.unregister(descriptor)

    def _send(self, rank: int, stream: str, data: bytes) -> None:
        self._credit -= len(data)
        self._sent += len(data)
        if self._untaken is not None:
            self._untaken.append((rank, stream, data))
        self._launcher.say("output", rank=rank, stream=stream, size=len(data))
        self._launcher.send(data)

    def _keep(self, rank: int, stream: str, data: bytes) -> None:
        if self._kept_bytes + len(data) > MOST_KEPT_BYTES:
            self._lost_bytes += len(data)
            return
        self._kept.append((rank, stream, data))
        self._kept_bytes += len(data)

    def _has_kept(self, rank: int | None) -> bool:
        return any(rank is None or rank == other for other, _, _ in self._kept)

    def _send_kept(self) -> None:
        while self._kept and self._credit > 0 and not self._keeping:
            rank, stream, data = self._kept.popleft()
            now, later = data[: self._credit], data[self._credit :]
            self._kept_bytes -= len(now)
            if later:
                self._kept.appendleft((rank, stream, later))
            self._send(rank, stream, now)


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
