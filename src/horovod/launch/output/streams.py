"""Forwarding what the ranks print: one prefix per line, lines stay whole.

Works on bytes: lines end only at ASCII characters, so a multi-byte character is never cut, and bytes that
are not UTF-8 arrive as they were written.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO

from horovod.errors import LaunchError
from horovod.launch.output.console import Console, harmless

__all__ = ["RESULT", "STREAMS", "LinePrefixer", "Output", "rank_directory"]

STREAMS = ("stdout", "stderr")
RESULT = "result"
"""A stream that is kept, not shown: what a rank's function returned."""

# A line that grows beyond this is forwarded in pieces, so a rank that never ends its line cannot fill memory.
LINE_LIMIT_BYTES = 4 << 20
_READ_BYTES = 1 << 16
_TAIL_LINES = 20
_TAILS = 256  # of ranks that have ended before the job


def most_result_bytes() -> int:
    """Limit in bytes of what ranks of other hosts may send home together: half of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class LinePrefixer:
    """Cuts one stream into lines and puts ``[rank]<stream>:`` before each.

    A carriage return ends a line like a newline and is kept, so progress bars look as they do without
    a launcher. With `timestamps` the local time (as C's ``asctime`` writes it) comes first.
    """

    def __init__(self, rank: int, stream: str, *, timestamps: bool = False) -> None:
        self._prefix = f"[{rank}]<{stream}>:".encode()
        self._timestamps = timestamps
        self._unfinished: list[bytes] = []
        self._unfinished_bytes = 0
        self._after_return = False
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def feed(self, data: bytes) -> bytes:
        """Take what was read; give back all lines that are complete now, prefixed."""
        done = b""
        if self._after_return and data:
            # The first half of a "\r\n" was forwarded already, as nobody could know what follows.
            self._after_return = False
            if data.startswith(b"\n"):
                done, data = b"\n", data[1:]
        if b"\n" not in data and b"\r" not in data:
            self._hold(data)
            return done + (self._release_oversized() if self._unfinished_bytes > LINE_LIMIT_BYTES else b"")
        lines = b"".join([*self._take_unfinished(), data]).splitlines(keepends=True)
        if not lines[-1].endswith((b"\n", b"\r")):
            self._hold(lines.pop())
        self._after_return = not self._unfinished and data.endswith(b"\r")
        return done + self._prefixed(lines)

    def close(self) -> bytes:
        """The unterminated last line, prefixed; no line end is added."""
        return self._prefixed([b"".join(self._take_unfinished())]) if self._unfinished else b""

    def tail(self) -> list[str]:
        """The last lines, without prefix; of a progress bar only its last state."""
        return [line.rstrip(b"\r\n").decode("utf-8", "replace") for line in self._tail]

    def _hold(self, data: bytes) -> None:
        if data:
            self._unfinished.append(data)
            self._unfinished_bytes += len(data)

    def _take_unfinished(self) -> list[bytes]:
        taken, self._unfinished, self._unfinished_bytes = self._unfinished, [], 0
        return taken

    def _release_oversized(self) -> bytes:
        line = b"".join(self._take_unfinished())
        cut = len(line)
        while cut > len(line) - 4 and line[cut - 1] & 0xC0 == 0x80:  # not inside a UTF-8 character
            cut -= 1
        if line[cut - 1] >= 0xC0:
            cut -= 1
        self._hold(line[cut:])
        return self._prefixed([line[:cut] + b"\n"])

    def _prefixed(self, lines: list[bytes]) -> bytes:
        for line in lines[-2 * _TAIL_LINES :]:
            if self._tail and self._tail[-1].endswith(b"\r"):
                self._tail.pop()
            self._tail.append(line)
        prefix = time.asctime().encode() + self._prefix if self._timestamps else self._prefix
        return prefix + prefix.join(lines)


def rank_directory(directory: Path, rank: int, size: int) -> Path:
    """Directory for the output of a rank: names of one width, so that they sort."""
    return directory / f"rank.{rank:0{len(str(size - 1))}d}"


class _Kept:
    """A stream of which nothing is shown, in place of a prefixer."""

    def __init__(self, data: bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data

    def feed(self, data: bytes) -> bytes:
        self.data += data
        return b""

    def close(self) -> bytes:
        return b""


class _Source:
    """One stream of one rank; its pipe if that is read here, else -1."""

    def __init__(
        self,
        descriptor: int,
        rank: int,
        stream: str,
        label: int,
        prefixer: LinePrefixer | _Kept,
        file: BinaryIO | None,
    ) -> None:
        self.open = True
        self.descriptor = descriptor
        self.writer = (rank, stream)
        self.label = label
        self.prefixer = prefixer
        self.file = file


class Output:
    """Forwards what all ranks print in a thread of its own, and owns that thread, the pipes and the files.

    Ranks of this host write to pipes that are attached; what others print is put. Of ranks that are not
    ``shown`` (None: all are) only files and the last lines are kept.

    ``goes_on``: files are those of another launcher, and go on where it has left them; else they are written
    anew.

    Ranks may come and go at any time. Then a rank here is the number of a worker, which is shown under its
    label. Of one that has ended (`end`) the last lines are kept for a while, and its result.

    The thread may block as long as it likes in a write to a slow terminal: supervision goes on without it.
    """

    def __init__(
        self,
        size: int,
        console: Console,
        *,
        timestamps: bool = False,
        directory: Path | None = None,
        shown: Set[int] | None = None,
        goes_on: bool = False,
    ) -> None:
        self._size = size
        self._goes_on = goes_on
        self._console = console
        self._timestamps = timestamps
        self._directory = directory
        self._shown = shown
        self._selector = selectors.DefaultSelector()  # of the thread
        self._inbox: deque[Callable[[], None]] = deque()  # what the thread shall do
        # Of whoever adds ranks and ends them:
        self._sources: dict[tuple[int, str], _Source] = {}
        self._files: set[Path] = set()  # that have been opened
        # Guarded by the lock:
        self._lock = threading.Lock()
        self._results_left = most_result_bytes()
        self._prefixers: dict[tuple[int, str], LinePrefixer] = {}
        self._kept: dict[int, _Kept] = {}
        self._tails: dict[int, tuple[str, ...]] = {}
        self._last_tails: OrderedDict[int, tuple[str, ...]] = OrderedDict()  # of those that have ended
        self._drain = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        # A daemon: after Ctrl-C the launcher must be able to leave although nobody reads its output.
        self._thread = threading.Thread(target=self._forward, name="output", daemon=True)

    def attach(self, descriptor: int, rank: int, stream: str, label: int | None = None) -> None:
        """Forward what can be read from `descriptor`, which is ours from now on. `label`: what it is shown
        under, if that is not the rank. Ranks are added and ended by one thread.

        Raises:
            LaunchError: the rank's file cannot be opened.
        """
        source = self._add(descriptor, rank, stream, label)
        self._tell(lambda: self._watch(source))

    def expect(self, rank: int, stream: str, label: int | None = None) -> None:
        """Announce a stream whose data will be `put`. `label` and threads: as for `attach`.

        Raises:
            LaunchError: the rank's file cannot be opened.
        """
        self._add(-1, rank, stream, label)

    def put(self, rank: int, stream: str, data: bytes, taken: Callable[[int], None]) -> None:
        """Forward `data`, from any thread, without waiting; calls `taken(len(data))` when that is done. Who
        puts without having heard that fills our memory. Not after `drain`, nor after the `end` of the rank.

        Raises:
            KeyError: a stream that was not expected.
            LaunchError: these results do not fit into this machine.
        """
        source = self._sources[rank, stream]
        if stream == RESULT:
            self._take_room(len(data))

        def forward() -> None:
            self._take_in(source, data)
            taken(len(data))

        self._tell(forward)

    def end(self, rank: int) -> None:
        """Nothing more will come of this rank: what it has printed is forwarded. Then nothing of it is kept
        but its last lines, for a while, and its result. No effect on one that is not there.
        """
        ended = [self._sources.pop((rank, each), None) for each in (*STREAMS, RESULT)]

        def close() -> None:
            for source in ended:
                if source is not None:
                    self._close(source)
                    self._console.forget(source.writer)
            self._forget(rank)

        self._tell(close)

    def discard(self, rank: int) -> None:
        """Nobody wants the result of this rank, which has ended."""
        self._tell(lambda: self._drop_result(rank))

    def keep(self, rank: int, tail: Sequence[str], result: bytearray) -> None:
        """The last lines of a rank whose output somebody else forwards, and its result. From any thread; not
        after `drain`.

        Raises:
            LaunchError: these results do not fit into this machine.
        """
        self._take_room(len(result))
        with self._lock:
            self._tails[rank] = tuple(tail)
            self._kept[rank] = _Kept(result)

    def start(self) -> None:
        self._thread.start()

    def drain(self, give_up: Callable[[], bool]) -> None:
        """Forward what is left in the pipes and stop. Only when the ranks have ended.

        Waits as long as the reader of our output needs, until `give_up` says that nobody wants to any more.
        Idempotent.
        """
        if self._wake < 0:
            return
        self._drain.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is None:  # the job ended before it began
            self._forward()
        while self._thread.is_alive() and not give_up():
            self._thread.join(timeout=0.1)
        if not self._thread.is_alive():
            os.close(self._wake)
            self._wake = -1

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of the stream that says most about a failure: stderr, unless it is empty. The very
        last ones are there after `drain`.
        """
        with self._lock:
            return self._tail_of(rank) or self._last_tails.get(rank) or self._tails.get(rank, ())

    def results(self) -> dict[int, bytearray]:
        """Bytes that came in the stream ``RESULT``, by rank. After `drain`."""
        return {rank: kept.data for rank, kept in self._kept.items()}

    def _tell(self, call: Callable[[], None]) -> None:
        """Let the thread do it."""
        self._inbox.append(call)
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _take_room(self, size: int) -> None:
        with self._lock:
            if size > self._results_left:
                raise LaunchError("results of more than half of this machine's memory")
            self._results_left -= size

    def _tail_of(self, rank: int) -> tuple[str, ...]:
        for stream in reversed(STREAMS):
            prefixer = self._prefixers.get((rank, stream))
            lines = prefixer.tail() if prefixer is not None else []
            if lines:
                return tuple(lines)
        return ()

    def _forget(self, rank: int) -> None:
        with self._lock:
            tail = self._tail_of(rank)
            for stream in STREAMS:
                self._prefixers.pop((rank, stream), None)
            if tail:
                self._last_tails[rank] = tail
                if len(self._last_tails) > _TAILS:
                    self._last_tails.popitem(last=False)
            if rank in self._kept and not self._kept[rank].data:
                del self._kept[rank]

    def _drop_result(self, rank: int) -> None:
        with self._lock:
            kept = self._kept.pop(rank, None)
            self._results_left += len(kept.data) if kept is not None else 0

    def _add(self, descriptor: int, rank: int, stream: str, label: int | None) -> _Source:
        shown_as = rank if label is None else label
        file: BinaryIO | None = None
        prefixer: LinePrefixer | _Kept
        if stream == RESULT:
            prefixer = _Kept()
            with self._lock:
                self._kept[rank] = prefixer
        else:
            file = self._open_file(shown_as, stream)
            prefixer = LinePrefixer(shown_as, stream, timestamps=self._timestamps)
            with self._lock:
                self._prefixers[rank, stream] = prefixer
        source = self._sources[rank, stream] = _Source(descriptor, rank, stream, shown_as, prefixer, file)
        return source

    def _open_file(self, label: int, stream: str) -> BinaryIO | None:
        """A later rank with this label goes on in the file; an earlier one may still write to it."""
        if self._directory is None:
            return None
        path = rank_directory(self._directory, label, self._size) / stream
        flags = (
            os.O_WRONLY
            | os.O_CREAT
            | os.O_APPEND
            | (0 if self._goes_on or path in self._files else os.O_TRUNC)
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
        except OSError as error:
            raise LaunchError(
                f"The output of rank {label} cannot be kept in {path}: {error.strerror or error}. "
                "Give --output-filename a directory that can be written."
            ) from error
        self._files.add(path)
        return file

    def _forward(self) -> None:
        while True:
            draining = self._drain.is_set()
            ready = self._selector.select(timeout=0 if draining else None)
            pipes = [key.data for key, _ in ready if key.data is not None]
            if len(pipes) < len(ready):
                os.eventfd_read(self._wake)
            told = self._empty_inbox()
            if not pipes and not told and draining:
                break  # a process that was not ours to end may still hold a pipe open
            for source in pipes:
                data = os.read(source.descriptor, _READ_BYTES) if source.open else b""
                if data:
                    self._take_in(source, data)
                else:
                    self._close(source)
        for source in list(self._sources.values()):
            self._close(source)
        self._console.tracebacks.name_ranks()
        self._console.flush()
        self._selector.close()

    def _empty_inbox(self) -> bool:
        """Do what was told; whether there was something."""
        found = bool(self._inbox)
        while self._inbox:
            self._inbox.popleft()()
        return found

    def _take_in(self, source: _Source, data: bytes) -> None:
        with self._lock:
            lines = source.prefixer.feed(data)
        self._deliver(source, lines)

    def _deliver(self, source: _Source, lines: bytes) -> None:
        if not lines:
            return
        if source.file is not None:
            try:
                source.file.write(lines)
            except OSError as error:
                stream = source.writer[1]
                self._console.tell(
                    f"the file of rank {source.label}'s {stream} ends here: {error.strerror or error}"
                )
                source.file.close()
                source.file = None
        if self._shown is not None and source.label not in self._shown:
            return
        if source.writer[1] == "stdout":
            self._show(lines, source.writer)
            return
        tracebacks = self._console.tracebacks
        self._show(tracebacks.feed(source.writer, source.label, lines), source.writer)
        for writer, held in tracebacks.settle():
            self._show(held, writer)

    def _show(self, lines: bytes, writer: Any) -> None:
        sink = self._console.stdout if writer[1] == "stdout" else self._console.stderr
        sink.write(harmless(lines) if sink.is_terminal else lines, writer)

    def _watch(self, source: _Source) -> None:
        self._selector.register(source.descriptor, selectors.EVENT_READ, source)

    def _close(self, source: _Source) -> None:
        if not source.open:
            return
        source.open = False
        with self._lock:
            lines = source.prefixer.close()
        self._deliver(source, lines)
        self._show(self._console.tracebacks.close(source.writer), source.writer)
        for writer, held in self._console.tracebacks.settle():
            self._show(held, writer)
        if source.descriptor >= 0:
            self._selector.unregister(source.descriptor)
            os.close(source.descriptor)
        if source.file is not None:
            source.file.close()
