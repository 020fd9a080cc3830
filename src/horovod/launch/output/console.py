"""What the user sees: two sinks for the ranks' output, and the launcher's own words on standard error."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from horovod.launch.output.escapes import harmless

__all__ = ["Console", "Footer", "Sink", "TextSink", "file_descriptor_sink", "text_stream_sink"]

_LAUNCHER = "launcher"
_USUAL_COLUMNS = 80  # of a terminal that does not know


class TextSink(Protocol):
    """Any text stream, for example a notebook's."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class Sink:
    """A place several writers put whole lines into; lines of two writers never share a line.

    A sink that can no longer be written to (its reader is gone, the disk is full) discards what follows:
    a viewer that goes away must not end a training job.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        on_lost: Callable[[OSError], None] | None = None,
        footer: Footer | None = None,
        *,
        is_terminal: bool = False,
    ) -> None:
        self.is_terminal = is_terminal
        self._write = write
        self._on_lost = on_lost
        self._footer = footer
        self._lock = footer.lock if footer is not None else threading.RLock()
        # Guarded by _lock: who wrote text that no line end has followed yet, and whether writing failed.
        self._mid_line: object = None
        self._lost = False
        if footer is not None:
            footer.sinks.append(self)

    def write(self, data: bytes, writer: object) -> None:
        """Write complete lines, or the unterminated last one of `writer`."""
        if not data:
            return
        with self._lock:
            if self._lost:
                return
            if self._footer is not None:
                self._footer.erase()
            if self._mid_line is not None and self._mid_line != writer:
                data = b"\n" + data
            self._mid_line = None if data.endswith((b"\n", b"\r")) else writer
            try:
                self._write(data)
                return
            except OSError as failure:
                self._lost = True
                error = failure
        if self._on_lost is not None:  # outside the lock: it may write to this sink
            self._on_lost(error)

    @property
    def between_lines(self) -> bool:
        return self._mid_line is None


class Footer:
    """A line below everything else on a terminal. Any write to a sink there takes it away, and the next
    `show` brings it back: it never gets between lines, nor into one.
    """

    def __init__(self, descriptor: int) -> None:
        self.lock = threading.RLock()
        self.sinks: list[Sink] = []
        self._descriptor = descriptor
        self._shown = ""  # guarded by lock

    def show(self, text: str) -> None:
        with self.lock:
            if text != self._shown:
                self.erase()
            if not self._shown and all(sink.between_lines for sink in self.sinks):
                columns = os.get_terminal_size(self._descriptor).columns or _USUAL_COLUMNS
                self._write(text[: columns - 1].encode("utf-8", "surrogateescape"))
                self._shown = text

    def erase(self) -> None:
        with self.lock:
            if self._shown:
                self._shown = ""
                self._write(b"\r\x1b[K")

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._descriptor, data)
        except OSError:
            pass  # the terminal is gone, or full: there will be another one soon


def file_descriptor_sink(
    descriptor: int, on_lost: Callable[[OSError], None] | None = None, footer: Footer | None = None
) -> Sink:
    """A sink that writes bytes as they are; waits where the descriptor is non-blocking."""

    def write(data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:  # a terminal that another program has made non-blocking
                select.select([], [descriptor], [])

    return Sink(write, on_lost, footer, is_terminal=_is_terminal(descriptor))


def text_stream_sink(stream: TextSink, on_lost: Callable[[OSError], None] | None = None) -> Sink:
    """A sink on a text stream. Bytes that are not UTF-8 become replacement characters."""

    def write(data: bytes) -> None:
        stream.write(data.decode("utf-8", "replace"))
        stream.flush()

    return Sink(write, on_lost)


class Console:
    """Standard output and standard error of the launcher, by default its file descriptors."""

    def __init__(
        self, *, verbose: bool = False, stdout: TextSink | None = None, stderr: TextSink | None = None
    ) -> None:
        self._started = time.monotonic()
        self._verbose = verbose
        self.footer = Footer(2) if stderr is None and _is_terminal(2) else None
        """None where standard error is no terminal."""
        if stderr is None:
            self.stderr = file_descriptor_sink(2, footer=self.footer)
        else:
            self.stderr = text_stream_sink(stderr)
        if stdout is None:
            footer = self.footer if _is_terminal(1) else None
            self.stdout = file_descriptor_sink(1, self._stdout_lost, footer)
        else:
            self.stdout = text_stream_sink(stdout, self._stdout_lost)

    def tell(self, text: str) -> None:
        """Say something the user must know."""
        self._say(f"horovodrun: {text}")

    def narrate(self, text: str) -> None:
        """Say what happens, with the seconds since the start; only with ``--verbose``."""
        if self._verbose:
            elapsed_s = time.monotonic() - self._started
            self._say(f"horovodrun [{elapsed_s:8.3f} s] {text}")

    def _say(self, text: str) -> None:
        # It may hold the last lines of a rank, what another host calls itself, what ssh has said.
        said = _bytes_of(f"{text}\n")
        self.stderr.write(harmless(said) if self.stderr.is_terminal else said, _LAUNCHER)

    def _stdout_lost(self, error: OSError) -> None:
        self.tell(
            f"cannot write to standard output any more ({error.strerror or error}); the job goes on, "
            "what the ranks print there is no longer shown."
        )


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character: JSON can say it
        return text.encode("utf-8", "backslashreplace")


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
