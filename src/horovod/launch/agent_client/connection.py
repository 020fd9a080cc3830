"""One connection to a host: the link that carries it, from the first attempt to the last news."""

from __future__ import annotations

import collections
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Protocol

from horovod.errors import LaunchError
from horovod.launch.agent.terms import BEAT_S
from horovod.launch.agent_client.messages import CannotFollow, request_line
from horovod.launch.agent_client.speech import MOST_PIECE_BYTES, Lost, News, Retry, Speech, Unreachable
from horovod.launch.agent_client.ssh_command import NO_SSH, explain, may_pass, too_late
from horovod.launch.contracts.events import Finished

__all__ = ["CLIENT", "Child", "Connection", "DOUBTED", "Link", "WATCHER"]

CLIENT = "its ssh client"
WATCHER = "the process that watches its ranks"
DOUBTED = 0.25
"""Of the usual silence, if others have lost that host, too."""

_PAUSE_S = 0.2  # before the second attempt; doubles
_LAST_S = 5.0  # that a client may run when its agent has finished
_TAIL_BYTES = 4096
_FEWEST_BEATS = 2
_BEAT = request_line({"beat": True})


class Link(Protocol):
    """Three pipes to an agent, there from the beginning. Whoever talks to the agent closes them."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    @property
    def why(self) -> str:
        """Why it ended, if it knows better than its status; else empty."""

    def kill(self) -> None:
        """Be over soon, whatever the agent does."""

    def wait(self, timeout: float | None = None) -> int:
        """The status, once it is over. Raises ``subprocess.TimeoutExpired``."""


class Child(subprocess.Popen[bytes]):
    """A command, as a link. In a session of its own: Ctrl-C reaches the launcher only, which decides."""

    why = ""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )


class Owner(Protocol):
    """The parts of its owner that a `Connection` uses, all of them on the thread of the owner."""

    silence_s: float
    attempts: int
    greeting_s: float
    text: bytes
    selector: selectors.BaseSelector

    def tell(self, name: str, news: News) -> None: ...

    def printed(self, host: Connection, rank: int, stream: str, data: bytes) -> None: ...

    def drop(self, host: Connection, size_bytes: int) -> None: ...


class Connection:
    """One ssh client, or another link, and what it carries. Used by the thread of its owner only."""

    def __init__(
        self,
        owner: Owner,
        name: str,
        command: Sequence[str] | Callable[[], Link],
        client: str = CLIENT,
    ) -> None:
        self.name = name
        self.connected = False  # an agent answered, and has not finished
        self.heard_at = 0.0
        self.due = float("inf")
        """When `look` has something to do."""
        self._owner = owner
        self._command = command
        self._client = client
        self._process: Link | None = None
        self._attempts = 0
        self._retry_at = float("inf")
        self._leave_at = float("inf")  # when it is given up, whatever it says
        self._done = False  # nothing more is expected from it
        self._hung_up = False
        self._doubted = False
        self._speech = Speech(self._answered, self._tell, self._printed, self._dropped)
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._said = bytearray()  # on standard error

    def expect(self, ranks: Iterable[int], window_bytes: int) -> None:
        """See `Connections.expect`."""
        self._speech.expect(ranks, window_bytes)

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
        self._speech.start()
        self._said.clear()
        self._outgoing.clear()
        self._outgoing.append(memoryview(self._owner.text))
        try:
            self._process = self._command() if callable(self._command) else Child(self._command)
        except (OSError, ValueError) as error:  # the latter: words that no command can have
            why = error.strerror if isinstance(error, OSError) else error
            self._finish()
            what = self._client if callable(self._command) else self._command[0]
            hint = NO_SSH if what == "ssh" and isinstance(error, FileNotFoundError) else ""
            self._tell(Unreachable(f"{what} cannot be run: {why}{hint}"))
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
        self._speech.attach()
        self.send(line)

    def pass_on(self, line: bytes) -> None:
        """See `Connections.pass_on`."""
        if self.connected:
            self._speech.ask()
            self.send(line)

    def feed(self, data: bytes) -> None:
        """See `Connections.feed`."""
        self._speech.feed(len(data))
        self.send(request_line({"input": data.decode("latin-1")}))

    def make_room(self, size_bytes: int) -> None:
        """So much of the output has been forwarded."""
        self._speech.make_room(size_bytes)
        self.send(request_line({"taken": size_bytes}))

    def beat(self) -> None:
        if self.connected and not self._outgoing:  # else what waits there is a sign of life
            self.send(_BEAT)

    def after_a_stall(self, now: float) -> None:
        """We were stopped, and who says nothing may not have been heard: an agent that waits for a launcher
        begins anew.
        """
        self.heard_at = now
        if self.connected:
            self._speech.attach()

    def doubt(self) -> None:
        """See `Connections.doubt`."""
        self._doubted = True
        self.due = 0.0  # `look`

    def look(self, now: float) -> None:
        """Do what is due."""
        if now >= self._retry_at:
            self.start()
        limit_s = self._owner.silence_s
        if self._doubted:
            limit_s = min(limit_s, max(DOUBTED * limit_s, _FEWEST_BEATS * BEAT_S))
        silent_at = self.heard_at + limit_s if self.connected else float("inf")
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
            self._tell(Lost("it is not needed any more"))

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
        self._doubted = False
        try:
            self._speech.take_in(data)
        except CannotFollow as error:
            self._lose(str(error))
        except (LaunchError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            self._lose(f"it sent what is not understood ({error})")

    def _answered(self) -> None:
        self.connected = True
        self._leave_at = float("inf")

    def _tell(self, news: News) -> None:
        if isinstance(news, Finished):
            self._finish()
        self._owner.tell(self.name, news)

    def _printed(self, rank: int, stream: str, data: bytes) -> None:
        self._owner.printed(self, rank, stream, data)

    def _dropped(self, size_bytes: int) -> None:
        self._owner.drop(self, size_bytes)

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
        self._tell(Unreachable(too_late(self._owner.greeting_s, said)))

    def _lose(self, reason: str) -> None:
        assert self._process is not None
        self._process.kill()
        self._gather()
        self._finish()
        self._tell(Lost(reason))

    def _ended(self) -> None:
        """The client has closed its output: it ends."""
        was_connected, noise = self.connected, self._speech.tail()
        assert self._process is not None
        link = self._process
        status, said = self._gather()
        if self._done or self._hung_up:
            self._finish()
        elif was_connected:
            self._finish()
            self._tell(Lost(link.why or _why_lost(status, said, self._client)))
        elif link.why:
            self._finish()
            self._tell(Unreachable(link.why))
        elif self._attempts < self._owner.attempts and may_pass(status, said):
            self._leave_at = float("inf")
            self._retry_at = self.due = time.monotonic() + _PAUSE_S * 2 ** (self._attempts - 1)
            self._tell(Retry(explain(status, said)))
        else:
            self._finish()
            self._tell(Unreachable(explain(status, said or noise.decode("utf-8", "replace"))))

    def _gather(self) -> tuple[int, str]:
        """Collect the client that has ended or is ending: its status and what it said last."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            status = process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        assert process.stderr is not None
        said = self._said + (_read_some(process.stderr.fileno()) or b"")
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                self._stop_watching(pipe)
                pipe.close()
        self._outgoing.clear()
        return status, said[-_TAIL_BYTES:].decode("utf-8", "replace")

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
        return os.read(descriptor, MOST_PIECE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
