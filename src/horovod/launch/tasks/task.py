"""The task's side: a host agent as its child, whose pipes go through the job's store.

A task has two connections to the store: by one it hears the launcher, by the other a thread tells what the
agent says. When the task's process dies the agent notices and ends the ranks; when the store goes, the task
closes the agent's standard input, which has the same effect.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.bootstrap.store.client import StoreClient
from horovod.errors import HorovodError, LaunchError, StoreTimeout
from horovod.launch.agent import bundle
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S, MARK
from horovod.launch.contracts.tasks import Card
from horovod.launch.output.streams import STREAMS, LinePrefixer
from horovod.launch.tasks.messages import ARRIVED, TASK, Arrival, bytes_of, down_key, text_of, up_key

__all__ = ["work"]

_ASK_S = 20.0  # a launcher that is stopped or cut off is noticed when it does not answer that
_READ_BYTES = 1 << 18
_END_S = GRACE_S + GIVE_UP_S + 1.0
_FAILED = 1


def work(card: Card, arrival: Arrival, call: Sequence[memoryview], environ: Mapping[str, str]) -> None:
    """Be a host of the job until the launcher says that it is over. In the main thread.

    Args:
        call: as for `TaskSource.begin`.
        environ: what ranks start from.

    Raises:
        LaunchError: the job has failed; the message says why.
        RendezvousError: the launcher is gone.
    """
    who = f"task {arrival.index} ({arrival.worker} on host {arrival.host})"
    scope = f"{TASK}{arrival.task}/"
    agent: _Agent | None = None
    with StoreClient(card.places, card.key, card.start_s, who, job=card.job) as client:
        client.watch(scope, -1, arrival.host)
        client.set(f"{ARRIVED}{arrival.task}", arrival.said())
        number = 0
        why = ""
        try:
            while True:
                key = down_key(arrival.task, number)
                try:
                    word = client.get(key, _ASK_S)
                except StoreTimeout:
                    continue
                client.remove(key)
                number += 1
                match word:
                    case {"begin": True} if agent is None:
                        agent = _Agent(card, arrival, call, environ, who)
                    case {"data": str(text)} if agent is not None:
                        agent.tell(bytes_of(text))
                    case {"eof": True} if agent is not None:
                        agent.hang_up()
                    case {"kill": True} if agent is not None:
                        agent.kill()
                    case {"over": str(why)}:
                        client.unwatch(scope)
                        break
                    case _:
                        raise LaunchError(f"The launcher asks {who} for what it does not know.")
        finally:
            if agent is not None:
                agent.close()
    if why:
        raise LaunchError(why)


class _Agent:
    """The host agent, and the thread that carries what it says."""

    def __init__(
        self, card: Card, arrival: Arrival, call: Sequence[memoryview], environ: Mapping[str, str], who: str
    ) -> None:
        self._arrival = arrival
        self._log = _Log(card.logged)
        self._client = StoreClient(card.places, card.key, card.start_s, who, job=card.job)
        self._child = _start(environ)
        assert self._child.stdin is not None
        self._stdin = self._child.stdin
        self._thread = threading.Thread(target=self._carry, name="agent", daemon=True)
        self._thread.start()
        if call:
            self.tell(json.dumps({"call": sum(piece.nbytes for piece in call)}).encode() + b"\n")
            for piece in call:
                self.tell(piece)

    def tell(self, data: bytes | memoryview) -> None:
        try:
            left = memoryview(data).cast("B")
            while left:
                left = left[os.write(self._stdin.fileno(), left) :]
        except (OSError, ValueError):
            pass  # it has ended, or was hung up: the thread says so

    def hang_up(self) -> None:
        """Close the input of the agent, which then ends what runs there."""
        self._stdin.close()

    def kill(self) -> None:
        """The process above it is killed: it ends its ranks at once."""
        self._child.kill()

    def close(self) -> None:
        """End it, if it still runs, and the thread."""
        self.hang_up()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._child.wait()
        self._thread.join(_END_S)
        self._client.close()

    def _carry(self) -> None:
        assert self._child.stdout is not None
        number = 0
        lost = False
        while data := os.read(self._child.stdout.fileno(), _READ_BYTES):
            self._log.take(data)
            if lost:
                continue  # so that the agent can write to its end
            try:
                self._client.set(up_key(self._arrival.task, number), {"data": text_of(data)})
            except HorovodError:
                lost = True
                self.hang_up()
            number += 1
        status = self._child.wait()
        self._child.stdout.close()
        if not lost:
            try:
                self._client.set(up_key(self._arrival.task, number), {"ended": status})
            except HorovodError:
                pass  # the main thread hears it as well


def _start(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Signals are as a shell would have them: programs that start tasks ignore some, or hold them back."""
    ignored = [each for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM) if _is_ignored(each)]
    held = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for each in ignored:
        signal.signal(each, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(bundle.__file__)), "remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
            bufsize=0,
        )
    finally:
        for each in ignored:
            signal.signal(each, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _is_ignored(signum: int) -> bool:
    return signal.getsignal(signum) == signal.SIG_IGN


class _Log:
    """Writes what ranks print to the task's own standard error, as far as it is wanted there."""

    def __init__(self, streams: Sequence[str]) -> None:
        self._streams = frozenset(streams) & frozenset(STREAMS)
        self._unread = bytearray()
        self._begun = False
        self._left = 0
        self._prefixer: LinePrefixer | None = None
        self._prefixers: dict[tuple[int, str], LinePrefixer] = {}

    def take(self, data: bytes) -> None:
        """The next bytes of the agent; see `horovod.launch.agent` for what they are."""
        if not self._streams:
            return
        self._unread += data
        if not self._begun:
            _, mark, rest = self._unread.partition(MARK)
            if not mark:
                return
            self._begun, self._unread = True, rest
        while True:
            if self._left:
                piece = bytes(self._unread[: self._left])
                del self._unread[: len(piece)]
                self._left -= len(piece)
                if self._prefixer is not None:
                    _write(self._prefixer.feed(piece))
                if self._left:
                    return
                continue
            line, end, rest = self._unread.partition(b"\n")
            if not end:
                return
            self._unread = rest
            self._understand(bytes(line))

    def _understand(self, line: bytes) -> None:
        match json.loads(line):
            case {"event": "output", "rank": int(rank), "stream": str(stream), "size": int(size)}:
                self._left = size
                self._prefixer = None
                if stream in self._streams:
                    self._prefixer = self._prefixers.setdefault((rank, stream), LinePrefixer(rank, stream))
            case {"event": "finished" | "gone"}:
                for prefixer in self._prefixers.values():
                    if rest := prefixer.close():
                        _write(rest + b"\n")


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass  # nobody keeps it
