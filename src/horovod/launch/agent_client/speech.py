"""Messages of an agent, taken apart: news of it, events of its ranks, and the bytes that these print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from horovod.errors import LaunchError
from horovod.launch.agent.terms import MARK, MOST_STOPS, MOST_WORDS
from horovod.launch.agent_client.messages import to_event
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    FewDevices,
    Finished,
    Gone,
    LeftBehind,
    PassedOn,
    Refused,
    Said,
    Started,
    Stopped,
)

__all__ = [
    "CaughtUp",
    "Greeting",
    "InputTaken",
    "Lost",
    "MOST_PIECE_BYTES",
    "News",
    "NoDirectory",
    "Nobody",
    "OutputLost",
    "Retry",
    "Speech",
    "Unreachable",
]

MOST_PIECE_BYTES = 1 << 18
"""Of output, in one message."""
_TAIL_BYTES = 4096
_LINE_LIMIT_BYTES = 1 << 20
_MOST_EVENTS = 64  # of a host, and of each of its ranks besides:
_MOST_EVENTS_OF_RANK = MOST_WORDS + 2 * MOST_STOPS + 8


@dataclass(frozen=True)
class Greeting:
    """An agent runs there."""

    host: str
    """Name that the host gives itself."""
    machine: str
    """The same text if and only if two names mean one system."""
    cores: int
    python: str
    origin: str
    """Our own address as that host sees it; empty if unknown."""


@dataclass(frozen=True)
class Retry:
    """The host could not be reached, and is tried again."""

    reason: str


@dataclass(frozen=True)
class Unreachable:
    """The host could not be reached; the last news of it."""

    reason: str


@dataclass(frozen=True)
class NoDirectory:
    """The working directory does not exist there."""

    errno: int


@dataclass(frozen=True)
class Nobody:
    """The agent that should be attached is not there."""


@dataclass(frozen=True)
class CaughtUp:
    """The agent that was attached has told all that happened before."""


@dataclass(frozen=True)
class OutputLost:
    """The agent had no room for so much of what ranks printed while no launcher was there."""

    size_bytes: int


@dataclass(frozen=True)
class InputTaken:
    """The rank that is fed has room for so much more."""

    size_bytes: int


@dataclass(frozen=True)
class Lost:
    """The connection to the host was lost; the last news of it."""

    reason: str


News = (
    Greeting | Retry | Unreachable | NoDirectory | Nobody | CaughtUp | OutputLost | InputTaken | Lost | Event
)


class Speech:
    """Reads the messages of one agent; a host that somebody else has taken over can do no more harm than be
    lost.

    Args:
        answered: an agent runs there; what came before was printed by the shell of the host.
        tell: takes its news, in order.
        printed: takes rank, stream and bytes of what a rank has printed.
        dropped: takes the number of bytes that a rank has printed which nobody knows any more.
    """

    def __init__(
        self,
        answered: Callable[[], None],
        tell: Callable[[News], None],
        printed: Callable[[int, str, bytes], None],
        dropped: Callable[[int], None],
    ) -> None:
        self._answered = answered
        self._tell = tell
        self._printed = printed
        self._dropped = dropped
        self._begun = False
        self._over = False  # it has finished
        self._incoming = bytearray()
        self._payload: tuple[int, str, int] | None = None
        self._ranks: frozenset[int] = frozenset()
        self._window_bytes = 0  # of output that may come before more is asked for
        self._events_left = _MOST_EVENTS
        self._fed_bytes = 0  # that its rank has not taken
        self._attaching = False  # asked for; no event but its answer counts
        self._attached = False
        self._recounting = False  # the agent that was attached tells what has happened

    def start(self) -> None:
        """Another client carries it from now on."""
        self._incoming.clear()

    def expect(self, ranks: Iterable[int], window_bytes: int) -> None:
        """Let the agent speak for these ranks as well, and send so many more bytes of output."""
        self._ranks = self._ranks.union(ranks)
        self._window_bytes += window_bytes
        self._events_left = _MOST_EVENTS + _MOST_EVENTS_OF_RANK * len(self._ranks)

    def make_room(self, size_bytes: int) -> None:
        """Let the agent send so many more bytes of output."""
        self._window_bytes += size_bytes

    def feed(self, size_bytes: int) -> None:
        """Count bytes sent for the standard input of a rank."""
        self._fed_bytes += size_bytes

    def ask(self) -> None:
        """Count one more event that was asked for."""
        self._events_left += 1

    def attach(self) -> None:
        """Expect the agent to begin anew: it was told to attach another one, or may find that by itself."""
        self._attaching = True

    def tail(self) -> bytes:
        """The end of what was not understood yet."""
        return bytes(self._incoming[-_TAIL_BYTES:])

    def take_in(self, data: bytes) -> None:
        """
        Raises:
            CannotFollow: it refuses what it was asked for.
            LaunchError, ValueError, KeyError, TypeError, OverflowError, RecursionError: it makes no sense.
        """
        self._incoming += data
        if not self._begun:
            _, mark, rest = self._incoming.partition(MARK)
            if not mark:  # what shells print when they start
                del self._incoming[:-_TAIL_BYTES]
                return
            self._begun = True
            self._answered()
            self._incoming = rest
        at = 0
        while not self._over:
            if self._payload is not None:
                rank, stream, size = self._payload
                if len(self._incoming) < at + size:
                    break
                self._payload = None
                if rank in self._ranks:
                    self._printed(rank, stream, bytes(self._incoming[at : at + size]))
                else:  # of one that was gone already when another launcher had it
                    self._dropped(size)
                at += size
                continue
            end = self._incoming.find(b"\n", at)
            if end < 0:
                if len(self._incoming) - at > _LINE_LIMIT_BYTES:
                    raise LaunchError("an endless line")
                break
            line = bytes(self._incoming[at:end])
            at = end + 1
            self._understand(json.loads(line))
        del self._incoming[:at]

    def _understand(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "output", "rank": int(rank), "stream": str(stream), "size": int(size)}:
                if not 0 < size <= min(MOST_PIECE_BYTES, self._window_bytes):
                    raise LaunchError("more output than it may send")
                if not (self._attached and rank not in self._ranks):
                    self._check_rank(rank)
                self._window_bytes -= size
                self._payload = (rank, stream, size)
            case {"event": "beat"}:
                pass
            case {"event": "input_taken", "size": int(size)} if 0 < size <= self._fed_bytes:
                self._fed_bytes -= size
                self._tell(InputTaken(size))
            case {"event": "attached"} if self._attaching:
                self._attaching, self._attached, self._recounting = False, True, True
            case {"event": "caught_up"} if self._recounting:
                self._recounting = False
                self._tell(CaughtUp())
            case {"event": _, "rank": int(rank)} if self._recounting and rank not in self._ranks:
                pass  # what we know is over
            case _ if self._recounting:
                self._take_event(message)
            case _:
                if self._events_left == 0:
                    raise LaunchError("it does not stop talking")
                self._events_left -= 1
                self._take_event(message)

    def _check_rank(self, rank: int) -> None:
        if rank not in self._ranks:
            raise LaunchError("it speaks for a rank that is not there")

    def _take_event(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "hello"}:
                self._tell(
                    Greeting(
                        host=str(message["host"]),
                        machine=str(message["machine"]),
                        cores=int(message["cores"]),
                        python=str(message["python"]),
                        origin=str(message["connection"]).partition(" ")[0],
                    )
                )
            case {"event": "nobody"} if self._attaching:
                self._attaching = False
                self._tell(Nobody())
            case {"event": "output_lost", "size": int(size)} if size > 0:
                self._tell(OutputLost(size))
            case {"event": "no_directory", "errno": int(errno)} if 0 < errno < 1 << 12:
                self._tell(NoDirectory(errno))
            case _:
                event = to_event(message)
                if isinstance(event, (Started, Said, Stopped, Continued, Exited, Refused, FewDevices, Gone)):
                    self._check_rank(event.rank)
                if isinstance(event, LeftBehind) and event.rank is not None:
                    self._check_rank(event.rank)
                if isinstance(event, PassedOn):
                    for rank in (*event.ranks, *event.others):
                        self._check_rank(rank)
                if isinstance(event, Gone):
                    self._ranks -= {event.rank}
                if isinstance(event, Finished):
                    self._over = True
                self._tell(event)
