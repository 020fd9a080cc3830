"""Reports of a host's ranks about themselves."""

from __future__ import annotations

import os
import select

from horovod.launch.agent.terms import MOST_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.launcher import Launcher
    from horovod.launch.agent.process_trees import ProcessTrees

_NAMES_PROCESS = b'{"process": '  # begins the word by which a rank says which process it is


class Words:
    """Reports of this host's ranks about themselves, line by line: see horovod.bootstrap.place.starter."""

    def __init__(self, launcher: Launcher, poller: select.poll) -> None:
        self._launcher = launcher
        self._poller = poller
        self._open: dict[int, int] = {}  # descriptor -> rank
        self._left: dict[int, int] = {}  # rank -> how many it may say yet
        self.trees: ProcessTrees | None = None
        """Are told which process a rank is."""

    def add(self, rank: int) -> int:
        """A new pipe; returns the end that the rank writes to. Neither side ever waits."""
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            os.set_blocking(end, False)
        self._open[read_end] = rank
        self._left[rank] = MOST_WORDS
        self._poller.register(read_end, select.POLLIN)
        return write_end

    def forward(self, descriptor: int) -> bool:
        """Send what is there; whether this descriptor is one of these."""
        if descriptor not in self._open:
            return False
        rank = self._open[descriptor]
        try:
            said = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        for line in said.splitlines():
            if self._left[rank] > 0:
                self._left[rank] -= 1
                if not line.startswith(_NAMES_PROCESS):
                    self._launcher.say("said", rank=rank, line=line.decode("utf-8", "replace"))
                elif self.trees is not None:
                    self.trees.identified(rank, line)
        if not said:
            self._poller.unregister(descriptor)
            del self._open[descriptor]
            os.close(descriptor)
        return True

    def catch_up(self) -> None:
        """Send what is there of every rank: what one said before another one ended comes before that end."""
        for descriptor in list(self._open):
            self.forward(descriptor)

    def close(self) -> None:
        """Stop listening, which ranks can see: nobody is left to tell it to."""
        for rank in set(self._open.values()):
            self.last_of(rank)

    def last_of(self, rank: int) -> None:
        """The rank has ended: its last words come before that. What it leaves behind may not speak for it."""
        for descriptor in [each for each, other in self._open.items() if other == rank]:
            self.forward(descriptor)
            if descriptor in self._open:
                self._poller.unregister(descriptor)
                del self._open[descriptor]
                os.close(descriptor)
        self._left.pop(rank, None)
