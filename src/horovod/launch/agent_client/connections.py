"""Host agents, each behind one ssh client or another child with two pipes; one thread talks to all of them.

The thread never waits for the rest of the launcher, so it sends heartbeats also while the user's terminal
takes no output. A host counts as lost when its connection ends, or when nothing came from it for a while: an
agent beats, too.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from horovod.errors import LaunchError
from horovod.launch.agent.terms import BEAT_S
from horovod.launch.agent_client.connection import CLIENT, Connection, Link
from horovod.launch.agent_client.messages import request_line
from horovod.launch.agent_client.speech import Lost, News
from horovod.launch.mailbox import Mailbox

__all__ = ["Connections"]

_STALL_S = 2 * BEAT_S


class Connections:
    """One connection per host. What happens arrives as news: pairs of host name and what it is.

    Args:
        text: the agent's, which is sent to the standard input of each command.
        silence_s: a host that says nothing for so long is lost.
        attempts: how often each host is tried.
        greeting_s: how long one attempt may take.
    """

    def __init__(
        self,
        text: bytes,
        silence_s: float,
        *,
        attempts: int = 1,
        greeting_s: float = float("inf"),
    ) -> None:
        self.silence_s = silence_s
        self.attempts = attempts
        self.greeting_s = greeting_s
        self.text = text
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._news: Mailbox[tuple[str, News]] = Mailbox()
        self._calls: Mailbox[Callable[[], None]] = Mailbox()
        # Of the thread, which alone changes them: the newest connection of each host, and all that still run.
        self._hosts: dict[str, Connection] = {}
        self._running: list[Connection] = []
        self._closing_until: float | None = None
        self._deliver: Callable[[int, str, bytes, Callable[[int], None]], None] | None = None
        self.selector.register(self._calls, selectors.EVENT_READ, self._make_calls)
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._news.fileno()

    def news(self) -> list[tuple[str, News]]:
        """News since the last call, in order."""
        return self._news.take()

    def deliver_to(self, deliver: Callable[[int, str, bytes, Callable[[int], None]], None]) -> None:
        """From now on `deliver(rank, stream, data, taken)` gets what ranks print. It must not wait, and calls
        `taken(size)` when there is room for more. Before the first request only.
        """
        self._deliver = deliver

    def reach(self, name: str, command: Sequence[str] | Callable[[], Link], *, client: str = CLIENT) -> None:
        """Connect to a further host, or to one whose last news have come, by a command or a link that is
        made then; ``client``: what runs the command, in messages. From any thread.
        """

        def start() -> None:
            host = self._hosts[name] = Connection(self, name, command, client)
            if self._closing_until is None:
                self._running.append(host)
                host.start()

        self._calls.put(start)
        if not self._thread.is_alive():  # nobody will do it
            self.tell(name, Lost("the launcher cannot connect to hosts any more"))

    def leave(self, name: str, patience_s: float) -> None:
        """The agent of a host has been told to end; after so long its connection is lost. A host that is not
        connected yet is lost at once. From any thread.
        """
        self._calls.put(lambda: self._hosts[name].leave(patience_s))

    def doubt(self, name: str) -> None:
        """Somebody else has lost this host: until it is heard, `DOUBTED` of the usual silence is enough. From
        any thread.
        """
        self._calls.put(lambda: self._hosts[name].doubt())

    def expect(self, name: str, ranks: Iterable[int], window_bytes: int = 0) -> None:
        """From now on the agent of a host may speak for these ranks as well, with so many more bytes of
        output on the way. Before the request with which they start. From any thread.
        """
        chosen = frozenset(ranks)
        self._calls.put(lambda: self._hosts[name].expect(chosen, window_bytes))

    def request(self, name: str, *pieces: bytes | memoryview) -> None:
        """Send a request to the agent of a host; lost hosts get none. From any thread. The pieces are not
        copied, so that many hosts share them.
        """
        self._calls.put(lambda: self._hosts[name].send(*pieces))

    def attach(self, name: str, socket: str) -> None:
        """Be the launcher of the agent that waits there on the host of this name. Comes as news: `Nobody`, or
        what happened to the ranks that are expected, and then `CaughtUp`. From any thread.
        """
        self._calls.put(lambda: self._hosts[name].attach(request_line({"attach": socket})))

    def request_all(self, line: bytes) -> None:
        """Send it to all agents."""

        def send() -> None:
            for host in self._hosts.values():
                host.send(line)

        self._calls.put(send)

    def pass_on(self, signum: int) -> None:
        """Let all agents send a signal to their ranks, as `Processes.pass_on`. From any thread."""
        line = request_line({"signal": signum})

        def send() -> None:
            for host in self._hosts.values():
                host.pass_on(line)

        self._calls.put(send)

    def feed(self, name: str, data: bytes) -> None:
        """Send what the rank that is fed reads on its standard input; empty: the end. From any thread."""
        self._calls.put(lambda: self._hosts[name].feed(data))

    def silent_s(self) -> dict[str, float]:
        """Seconds since each host that still counts was last heard."""
        now = time.monotonic()
        return {name: now - host.heard_at for name, host in list(self._hosts.items()) if host.connected}

    def close(self, patience_s: float) -> None:
        """Close all connections: agents that still run end their ranks. Waits for that, up to a limit.
        Idempotent."""
        if self._thread.is_alive():
            self._calls.put(lambda: self._hang_up(patience_s))
            self._thread.join()
        self._news.close()
        self._calls.close()

    # What connections use; on the thread.

    def tell(self, name: str, news: News) -> None:
        self._news.put((name, news))

    def printed(self, host: Connection, rank: int, stream: str, data: bytes) -> None:
        if self._deliver is None:
            raise LaunchError("ranks print before they were started")

        def taken(size: int) -> None:
            self._calls.put(lambda: host.make_room(size))

        self._deliver(rank, stream, data, taken)

    def drop(self, host: Connection, size_bytes: int) -> None:
        """Drop printed bytes that are of no use, and make room for as many."""
        self._calls.put(lambda: host.make_room(size_bytes))

    def _make_calls(self) -> None:
        for call in self._calls.take():
            call()

    def _hang_up(self, patience_s: float) -> None:
        self._closing_until = time.monotonic() + patience_s
        for host in self._running:
            host.hang_up()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            for host in self._running:
                host.kill()
                self.tell(host.name, Lost(f"the launcher failed: {error!r}"))
            raise

    def _serve(self) -> None:
        beat_at = time.monotonic()
        while self._closing_until is None or any(host.running for host in self._running):
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + BEAT_S
                for host in self._running:
                    host.beat()
            due = min([beat_at, *(host.due for host in self._running)])
            for key, _ in self.selector.select(max(0.0, due - time.monotonic())):
                key.data()
            now = time.monotonic()
            if now > due + _STALL_S:
                for host in self._running:
                    host.after_a_stall(now)
            for host in self._running:
                host.look(now)
            self._running = [host for host in self._running if not host.over]
            if self._closing_until is not None and now >= self._closing_until:
                break
        for host in self._running:
            host.kill()
        self.selector.close()
