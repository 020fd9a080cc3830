"""Host agents, each behind one ssh client or another child with two pipes; one thread talks to all of them.

The thread never waits for the rest of the launcher, so it sends heartbeats also while the user's terminal
takes no output. A host counts as lost when its connection ends, or when nothing came from it for a while: an
agent beats, too.
"""

from __future__ import annotations

import collections
import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.errors import LaunchError
from horovod.launch.agent.terms import BEAT_S, MARK, MOST_STOPS, MOST_WORDS
from horovod.launch.agent_client.messages import CannotFollow, request_line, to_event
from horovod.launch.agent_client.ssh_command import explain, may_pass, too_late
from horovod.launch.launchers.contract import (
    Continued,
    Event,
    Exited,
    FewDevices,
    Finished,
    Gone,
    LeftBehind,
    Refused,
    Said,
    Started,
    Stopped,
)
from horovod.launch.mailbox import Mailbox

__all__ = [
    "WATCHER",
    "CaughtUp",
    "Connections",
    "Greeting",
    "Lost",
    "News",
    "NoDirectory",
    "Nobody",
    "OutputLost",
    "Retry",
    "Unreachable",
]

WATCHER = "the process that watches its ranks"
_CLIENT = "its ssh client"
_ATTEMPTS = 5
_PAUSE_S = 0.2  # before the second attempt; doubles
_LAST_S = 5.0  # that a client may run when its agent has finished
_STALL_S = 2 * BEAT_S
_TAIL_BYTES = 4096
_LINE_LIMIT_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MOST_EVENTS = 64  # of a host, and of each of its ranks besides:
_MOST_EVENTS_OF_RANK = MOST_WORDS + 2 * MOST_STOPS + 8
_BEAT = request_line({"beat": True})


@dataclass(frozen=True)
class Greeting:
    """An agent runs there."""

    host: str
    """What the host calls itself."""
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
class Lost:
    """The connection to the host was lost; the last news of it."""

    reason: str


News = Greeting | Retry | Unreachable | NoDirectory | Nobody | CaughtUp | OutputLost | Lost | Event


class Connections:
    """One connection per host. What happens arrives as news: pairs of host name and what it is.

    Args:
        commands: by host, what runs an agent there; its text is sent to standard input.
        text: the agent's.
        silence_s: a host that says nothing for so long is lost.
        attempts: how often each host is tried.
        greeting_s: how long one attempt may take.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        text: bytes,
        silence_s: float,
        *,
        attempts: int = _ATTEMPTS,
        greeting_s: float = float("inf"),
    ) -> None:
        self.silence_s = silence_s
        self.attempts = attempts
        self.greeting_s = greeting_s
        self.text = text
        self.selector = selectors.DefaultSelector()
        self._news: Mailbox[tuple[str, News]] = Mailbox()
        self._calls: Mailbox[Callable[[], None]] = Mailbox()
        # Of the thread, which alone changes them: the newest connection of each host, and all that still run.
        self._hosts = {name: _Connection(self, name, command) for name, command in commands.items()}
        self._running = list(self._hosts.values())
        self._closing_until: float | None = None
        self._deliver: Callable[[int, str, bytes, Callable[[int], None]], None] | None = None
        self.selector.register(self._calls, selectors.EVENT_READ, self._make_calls)
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._news.fileno()

    def news(self) -> list[tuple[str, News]]:
        """What happened since the last call, in order."""
        return self._news.take()

    def deliver_to(self, deliver: Callable[[int, str, bytes, Callable[[int], None]], None]) -> None:
        """From now on `deliver(rank, stream, data, taken)` gets what ranks print. It must not wait, and calls
        `taken(size)` when there is room for more. Before the first request only.
        """
        self._deliver = deliver

    def reach(self, name: str, command: Sequence[str], *, client: str = _CLIENT) -> None:
        """Connect to a further host, or to one whose last news have come; ``client``: what runs the command,
        in messages. From any thread.
        """

        def start() -> None:
            host = self._hosts[name] = _Connection(self, name, command, client)
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

    def attach(self, name: str, door: str) -> None:
        """Be the launcher of the agent that waits there on the host of this name. Comes as news: `Nobody`, or
        what happened to the ranks that are expected, and then `CaughtUp`. From any thread.
        """
        self._calls.put(lambda: self._hosts[name].attach(request_line({"attach": door})))

    def request_all(self, line: bytes) -> None:
        """Send it to all agents."""

        def send() -> None:
            for host in self._hosts.values():
                host.send(line)

        self._calls.put(send)

    def silent_s(self) -> dict[str, float]:
        """How long ago each host that still counts was heard."""
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

    def printed(self, host: _Connection, rank: int, stream: str, data: bytes) -> None:
        if self._deliver is None:
            raise LaunchError("ranks print before they were started")

        def taken(size: int) -> None:
            self._calls.put(lambda: host.make_room(size))

        self._deliver(rank, stream, data, taken)

    def drop(self, host: _Connection, size_bytes: int) -> None:
        """What was printed is of no use."""
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
        for host in self._running:
            host.start()
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


class _Connection:
    """One ssh client and what it carries. Used by the thread of its owner only."""

    def __init__(self, owner: Connections, name: str, command: Sequence[str], client: str = _CLIENT) -> None:
        self.name = name
        self.connected = False  # an agent answered, and has not finished
        self.heard_at = 0.0
        self.due = float("inf")
        """When `look` has something to do."""
        self._owner = owner
        self._command = command
        self._client = client
        self._process: subprocess.Popen[bytes] | None = None
        self._attempts = 0
        self._retry_at = float("inf")
        self._leave_at = float("inf")  # when it is given up, whatever it says
        self._done = False  # nothing more is expected from it
        self._hung_up = False
        self._incoming = bytearray()
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._payload: tuple[int, str, int] | None = None
        self._said = bytearray()
        self._ranks: frozenset[int] = frozenset()
        self._window_bytes = 0  # of output that may come before more is asked for
        self._events_left = _MOST_EVENTS
        self._attaching = False  # asked for; no event but its answer counts
        self._attached = False
        self._recounting = False  # the agent that was attached tells what has happened

    def expect(self, ranks: Iterable[int], window_bytes: int) -> None:
        """See `Connections.expect`."""
        self._ranks = self._ranks.union(ranks)
        self._window_bytes += window_bytes
        self._events_left = _MOST_EVENTS + _MOST_EVENTS_OF_RANK * len(self._ranks)

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def over(self) -> bool:
        """Nothing will happen any more."""
        return self._done and self._process is None

    def start(self) -> None:
        self._attempts += 1
        self._retry_at = float("inf")
        self._leave_at = self.due = time.monotonic() + self._owner.greeting_s
        self._incoming.clear()
        self._said.clear()
        self._outgoing.clear()
        self._outgoing.append(memoryview(self._owner.text))
        try:
            # A session of its own: Ctrl-C reaches the launcher only, which decides.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:  # the latter: words that no command can have
            why = error.strerror if isinstance(error, OSError) else error
            self._finish()
            self._owner.tell(self.name, Unreachable(f"{self._command[0]} cannot be run: {why}"))
            return
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._owner.selector.register(self._process.stdout, selectors.EVENT_READ, self._read)
        self._owner.selector.register(self._process.stderr, selectors.EVENT_READ, self._read_errors)
        self._flush()

    def send(self, *pieces: bytes | memoryview) -> None:
        if self._process is not None and not self._hung_up:
            self._outgoing.extend(memoryview(piece).cast("B") for piece in pieces)
            self._flush()

    def attach(self, line: bytes) -> None:
        """See `Connections.attach`."""
        self._attaching = True
        self.send(line)

    def make_room(self, size_bytes: int) -> None:
        """So much of the output has been forwarded."""
        self._window_bytes += size_bytes
        self.send(request_line({"taken": size_bytes}))

    def beat(self) -> None:
        if self.connected and not self._outgoing:  # else what waits there is a sign of life
            self.send(_BEAT)

    def after_a_stall(self, now: float) -> None:
        """We were stopped, and who says nothing may not have been heard: an agent that waits for a launcher
        begins anew.
        """
        self.heard_at = now
        self._attaching = self._attaching or self.connected

    def look(self, now: float) -> None:
        """Do what is due."""
        if now >= self._retry_at:
            self.start()
        silent_at = self.heard_at + self._owner.silence_s if self.connected else float("inf")
        self.due = min(self._retry_at, self._leave_at, silent_at)
        if now < self.due:
            return
        if now >= silent_at:
            self._lose(f"nothing has been heard from it for {now - self.heard_at:.0f} s")
        elif self._done:
            self.kill()
        elif self.connected:
            self._lose("it was told to end and has not")
        else:
            self._give_up()

    def leave(self, patience_s: float) -> None:
        """See `Connections.leave`."""
        if self.connected:
            self._leave_at = self.due = time.monotonic() + patience_s
        elif not self._done:
            self._finish()
            self._owner.tell(self.name, Lost("it is not needed any more"))

    def hang_up(self) -> None:
        """Close our end: the agent ends what still runs."""
        self._retry_at = float("inf")
        if self._process is not None and not self._hung_up:
            self._hung_up = True
            assert self._process.stdin is not None
            self._stop_watching(self._process.stdin)
            self._process.stdin.close()
            if not (self.connected or self._done):  # still on its way: nothing runs there yet
                self._process.kill()

    def kill(self) -> None:
        """End the client, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._gather()

    def _flush(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        pipe = self._process.stdin
        try:
            while self._outgoing:
                piece = self._outgoing.popleft()
                try:
                    rest = piece[os.write(pipe.fileno(), piece) :]
                except BlockingIOError:
                    self._outgoing.appendleft(piece)
                    raise
                if rest:
                    self._outgoing.appendleft(rest)
        except BlockingIOError:
            if pipe.fileno() not in self._owner.selector.get_map():
                self._owner.selector.register(pipe, selectors.EVENT_WRITE, self._flush)
            return
        except OSError:
            self._outgoing.clear()  # it has ended; its output says so, too
        self._stop_watching(pipe)

    def _read_errors(self) -> None:
        if self._process is None:  # collected a moment ago
            return
        assert self._process.stderr is not None
        data = _read_some(self._process.stderr.fileno())
        if data == b"":
            self._stop_watching(self._process.stderr)
        elif data is not None:
            self._said = (self._said + data)[-_TAIL_BYTES:]

    def _read(self) -> None:
        if self._process is None:
            return
        assert self._process.stdout is not None
        data = _read_some(self._process.stdout.fileno())
        if data is None:
            return
        if not data:
            self._ended()
            return
        if self._done:
            return  # it has said its last word
        self.heard_at = time.monotonic()
        self._incoming += data
        try:
            self._take_in()
        except CannotFollow as error:
            self._lose(str(error))
        except (LaunchError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            self._lose(f"it sent what is not understood ({error})")

    def _take_in(self) -> None:
        if not self.connected:
            _, mark, rest = self._incoming.partition(MARK)
            if not mark:  # what shells print when they start
                del self._incoming[:-_TAIL_BYTES]
                return
            self.connected = True
            self._leave_at = float("inf")
            self._incoming = rest
        at = 0
        while not self._done:
            if self._payload is not None:
                rank, stream, size = self._payload
                if len(self._incoming) < at + size:
                    break
                self._payload = None
                if rank in self._ranks:
                    self._owner.printed(self, rank, stream, bytes(self._incoming[at : at + size]))
                else:  # of one that was gone already when another launcher had it
                    self._owner.drop(self, size)
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
                if not 0 < size <= min(_READ_BYTES, self._window_bytes):
                    raise LaunchError("more output than it may send")
                if not (self._attached and rank not in self._ranks):
                    self._check_rank(rank)
                self._window_bytes -= size
                self._payload = (rank, stream, size)
            case {"event": "beat"}:
                pass
            case {"event": "attached"} if self._attaching:
                self._attaching, self._attached, self._recounting = False, True, True
            case {"event": "caught_up"} if self._recounting:
                self._recounting = False
                self._owner.tell(self.name, CaughtUp())
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
                self._owner.tell(
                    self.name,
                    Greeting(
                        host=str(message["host"]),
                        machine=str(message["machine"]),
                        cores=int(message["cores"]),
                        python=str(message["python"]),
                        origin=str(message["connection"]).partition(" ")[0],
                    ),
                )
            case {"event": "nobody"} if self._attaching:
                self._attaching = False
                self._owner.tell(self.name, Nobody())
            case {"event": "output_lost", "size": int(size)} if size > 0:
                self._owner.tell(self.name, OutputLost(size))
            case {"event": "no_directory", "errno": int(errno)} if 0 < errno < 1 << 12:
                self._owner.tell(self.name, NoDirectory(errno))
            case _:
                event = to_event(message)
                if isinstance(event, (Started, Said, Stopped, Continued, Exited, Refused, FewDevices, Gone)):
                    self._check_rank(event.rank)
                if isinstance(event, LeftBehind) and event.rank is not None:
                    self._check_rank(event.rank)
                if isinstance(event, Gone):
                    self._ranks -= {event.rank}
                if isinstance(event, Finished):
                    self._finish()
                self._owner.tell(self.name, event)

    def _finish(self) -> None:
        self.hang_up()
        self._done = True
        self.connected = False
        self._leave_at = self.due = time.monotonic() + _LAST_S

    def _give_up(self) -> None:
        """No agent has answered in time."""
        assert self._process is not None
        self._process.kill()
        _, said = self._gather()
        self._finish()
        self._owner.tell(self.name, Unreachable(too_late(self._owner.greeting_s, said)))

    def _lose(self, reason: str) -> None:
        assert self._process is not None
        self._process.kill()
        self._gather()
        self._finish()
        self._owner.tell(self.name, Lost(reason))

    def _ended(self) -> None:
        """The client has closed its output: it ends."""
        was_connected, noise = self.connected, bytes(self._incoming[-_TAIL_BYTES:])
        status, said = self._gather()
        if self._done or self._hung_up:
            self._finish()
        elif was_connected:
            self._finish()
            self._owner.tell(self.name, Lost(_why_lost(status, said, self._client)))
        elif self._attempts < self._owner.attempts and may_pass(status, said):
            self._leave_at = float("inf")
            self._retry_at = self.due = time.monotonic() + _PAUSE_S * 2 ** (self._attempts - 1)
            self._owner.tell(self.name, Retry(explain(status, said)))
        else:
            self._finish()
            self._owner.tell(
                self.name, Unreachable(explain(status, said or noise.decode("utf-8", "replace")))
            )

    def _gather(self) -> tuple[int, str]:
        """Collect the client that has ended or is ending: its status and what it said last."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        said = self._said + (_read_some(process.stderr.fileno()) or b"")
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                self._stop_watching(pipe)
                pipe.close()
        self._outgoing.clear()
        return process.returncode, said[-_TAIL_BYTES:].decode("utf-8", "replace")

    def _stop_watching(self, pipe: Any) -> None:
        if not pipe.closed and pipe.fileno() in self._owner.selector.get_map():
            self._owner.selector.unregister(pipe)


def _why_lost(status: int, said: str, client: str) -> str:
    if status == 0:
        return "its ranks were ended there: that host had not heard this machine for too long"
    if status < 0:
        return f"{client} was ended by signal {-status}"
    if status == 1:
        return f"{WATCHER} ended unexpectedly; its ranks were killed"
    return f"the connection ended: {explain(status, said)}"


def _read_some(descriptor: int) -> bytes | None:
    """None: nothing there now; empty: nothing will come any more."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
