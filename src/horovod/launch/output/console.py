"""Output for the user: two sinks for what ranks print, and the launcher's own words on standard error.

Lines are harmless for a terminal: they may have colours, and nothing else that is obeyed. A rank of another
host, or text that a script has from somewhere, could otherwise set the title, write to the clipboard, move
the cursor over what others said, or make the terminal answer as if somebody had typed.
"""

from __future__ import annotations

import math
import os
import re
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from horovod.launch.output.tracebacks import Tracebacks

__all__ = ["Console", "Footer", "Sink", "TextSink", "file_descriptor_sink", "harmless", "text_stream_sink"]

_LAUNCHER = "launcher"
BAR_S = 1.0
"""Between two lines for the steps of one progress bar, where others write in between."""

_USUAL_COLUMNS = 80  # of a terminal that does not know
# ESC and what belongs to it: control sequences; strings up to their end, if that is in the line; others.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b(?![]\[PX^_])[ -/]*[0-~]"
)
_COLOURS = re.compile(r"[0-9;:]*")
_CONTROLS = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]")
_SUSPECT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINE_END = re.compile(r"([\r\n]+)")
_RESET = "\x1b[0m"


class TextSink(Protocol):
    """Any text stream, for example a notebook's."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class _Line:
    """The last line of a terminal or file. ``writer``: who wrote text there that no newline has followed yet;
    guarded by ``lock``.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.writer: object = None


class Sink:
    """A place several writers put whole lines into; lines of two writers never share a line. What ends with a
    carriage return, as progress bars do, is a line like any other once another writer goes on.

    On a terminal, where the bars of several writers would take a line for each step, no writer begins more
    than one such line each ``BAR_S``: the newest step waits until then, or until `flush`.

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
        self._line = footer.line if footer is not None else _Line()
        self._lock = self._line.lock
        # Guarded by _lock: steps of bars that wait, when each writer began a line for one, and whether
        # writing failed.
        self._waiting: dict[object, bytes] = {}
        self._began: dict[object, float] = {}
        self._lost = False

    def write(self, data: bytes, writer: object) -> None:
        """Write complete lines, or the unterminated last one of `writer`."""
        if not data:
            return
        with self._lock:
            if self.is_terminal and self._has_to_wait(data, writer):
                self._waiting[writer] = data
                return
            waited = self._waiting.pop(writer, b"")
            if data.startswith(b"\n"):  # the other half of a line end
                data = waited + data  # else this text would stand over it on a terminal of its own
            lost = self._put(data, writer)
        self._tell_lost(lost)

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            lost = [self._put(data, writer) for writer, data in waiting.items()]
        self._tell_lost(next(filter(None, lost), None))

    def forget(self, writer: object) -> None:
        """This one will write no more."""
        with self._lock:
            lost = self._put(self._waiting.pop(writer), writer) if writer in self._waiting else None
            self._began.pop(writer, None)
        self._tell_lost(lost)

    def _has_to_wait(self, data: bytes, writer: object) -> bool:
        """True if these are steps of a bar that would begin a line too soon."""
        if b"\n" in data or not data.endswith(b"\r") or self._line.writer in (None, writer):
            return False
        now = time.monotonic()
        if now < self._began.get(writer, -math.inf) + BAR_S:
            return True
        self._began[writer] = now
        return False

    def _put(self, data: bytes, writer: object) -> OSError | None:
        """The error by which this sink was lost, if it is lost now."""
        if self._lost:
            return None
        if self._footer is not None:
            self._footer.erase()
        if self._line.writer is not None and self._line.writer != writer:
            data = b"\n" + data
        self._line.writer = None if data.endswith(b"\n") else writer
        try:
            self._write(data)
        except OSError as error:
            self._lost = True
            return error
        return None

    def _tell_lost(self, error: OSError | None) -> None:
        if error is not None and self._on_lost is not None:  # outside the lock: it may write to this sink
            self._on_lost(error)


class Footer:
    """A line below everything else on a terminal. Any write to a sink there takes it away, and the next
    `show` brings it back: it never gets between lines, nor into one.
    """

    def __init__(self, descriptor: int) -> None:
        self.line = _Line()
        """Line that the sinks on this terminal have in common."""
        self._descriptor = descriptor
        self._shown = ""  # guarded by the lock of the line

    def show(self, text: str) -> None:
        with self.line.lock:
            if text != self._shown:
                self.erase()
            if not self._shown and self.line.writer is None:
                columns = os.get_terminal_size(self._descriptor).columns or _USUAL_COLUMNS
                self._write(text[: columns - 1].encode("utf-8", "surrogateescape"))
                self._shown = text

    def erase(self) -> None:
        with self.line.lock:
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
    """Standard output and standard error of the launcher, by default its file descriptors. ``words``: where
    its own words go, if that is not standard error.
    """

    def __init__(
        self,
        *,
        verbose: bool = False,
        stdout: TextSink | None = None,
        stderr: TextSink | None = None,
        words: TextSink | None = None,
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

        self._words = self.stderr if words is None else text_stream_sink(words)
        self.tracebacks = Tracebacks(self.tell)

    def flush(self) -> None:
        """Write what still waits: see `Sink`."""
        self.stdout.flush()
        self.stderr.flush()

    def forget(self, writer: object) -> None:
        """A writer of the sinks will write no more."""
        self.stdout.forget(writer)
        self.stderr.forget(writer)

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
        self._words.write(harmless(said) if self._words.is_terminal else said, _LAUNCHER)

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


def harmless(lines: bytes) -> bytes:
    """``lines`` without what terminals obey, but for colours, the erasure of a line, tabs and line ends.

    Well-formed sequences are dropped, what is left of others is shown: ``^[``. Colours end with their line.
    Backspaces, which progress bars write before they return to the start of a line, are dropped.
    """
    if not _SUSPECT.search(lines):
        return lines
    text = lines.decode("utf-8", "surrogateescape")
    cleaned = "".join(_cleaned(part) for part in _LINE_END.split(text))
    return cleaned.encode("utf-8", "surrogateescape")


def _cleaned(line: str) -> str:
    coloured = False

    def keep(found: re.Match[str]) -> str:
        nonlocal coloured
        parameters, final = found["parameters"] or "", found["final"]
        if final == "m" and _COLOURS.fullmatch(parameters):
            coloured = True
            return f"\ue000{parameters}m"  # a stand-in for ESC [, which the next step takes away
        return f"\ue000{parameters}K" if final == "K" and parameters in ("", "0", "1", "2") else ""

    line = line.replace("\ue000", "\ufffd").replace("\b", "")
    line = _CONTROLS.sub(_shown, _SEQUENCE.sub(keep, line)).replace("\ue000", "\x1b[")
    return line + _RESET if coloured else line


def _shown(found: re.Match[str]) -> str:
    """A control character as ``^X``; those above ASCII as a replacement character."""
    code = ord(found[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else "\ufffd"
