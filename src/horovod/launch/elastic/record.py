"""Events of an elastic job, for people and for programs.

Each event is a line of JSON in a file: ``{"at": UNIX seconds, "event": name, "text": sentence, ...}``. It is
written as it happens, so that it is there after any end. Beside the timelines of the ranks there is one of
the job, in the same format: a mark for each event, and a span for each phase of a reset.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from horovod.config import TIMELINE_DYNAMIC
from horovod.errors import LaunchError
from horovod.launch.driver.actions import Log
from horovod.launch.output.console import Console

__all__ = ["Record", "timeline_of_job"]

_ASKED_FOR = frozenset({"ended", "starting", "newcomer", "notified", "ending"})
"""Events that are told only to those who want to know more."""


def timeline_of_job(timeline: str) -> Path | None:
    """The file beside that of rank 0: ``timeline.elastic.json`` for ``timeline.json``; None: none is asked
    for.
    """
    if not timeline or timeline == TIMELINE_DYNAMIC:
        return None
    stem, suffix = os.path.splitext(timeline)
    return Path(f"{stem}.elastic{suffix}")


class Record:
    """
    Args:
        console: where sentences go.
        events: the file for programs; None: there is none.
        timeline: that for a viewer, as ``timeline_of_job`` names it.
        goes_on: the files go on where another driver has left them; else they are written anew.

    Raises:
        LaunchError: a file cannot be written.
    """

    def __init__(
        self, console: Console, events: Path | None, timeline: Path | None = None, goes_on: bool = False
    ) -> None:
        self._console = console
        self._events = _File(console, events, goes_on)
        self._timeline = _File(console, timeline, goes_on)
        if not goes_on:
            self._timeline.write(b"[\n")

    def add(self, log: Log) -> None:
        tell = self._console.narrate if log.event in _ASKED_FOR else self._console.tell
        tell(log.text)
        at = time.time()
        line = {"at": round(at, 4), "event": log.event, "text": log.text, **log.fields}
        self._events.write(json.dumps(line).encode() + b"\n")
        for mark in _marks(log, at):
            # An array that is not closed can be read by the viewers: so it is complete at any moment.
            self._timeline.write(json.dumps(mark).encode() + b",\n")

    def close(self) -> None:
        """Idempotent."""
        self._events.close()
        self._timeline.close()


def _marks(log: Log, at: float) -> list[dict[str, Any]]:
    """Trace events: see "Trace Event Format" of the Chromium project. Times are UNIX microseconds."""
    common = {"pid": 0, "tid": 0}
    mark = {"name": log.event, "ph": "i", "s": "g", "ts": round(at * 1e6), "args": {"text": log.text}}
    marks = [{**mark, **common}]
    if log.event == "resumed":
        took: dict[str, float] = log.fields["took"]
        begins = at - sum(took.values())
        for phase, took_s in took.items():
            span = {"name": phase, "ph": "X", "ts": round(begins * 1e6), "dur": round(took_s * 1e6)}
            marks.append({**span, **common})
            begins += took_s
    return marks


class _File:
    """A file, or none; once it cannot be written it is left."""

    def __init__(self, console: Console, path: Path | None, goes_on: bool) -> None:
        self._console = console
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # A pipe must not stop the job: neither one without a reader, nor one that is full.
                flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
                flags |= os.O_APPEND if goes_on else os.O_TRUNC
                self._file = os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0)
            except OSError as error:
                why = "it is a pipe that nobody reads" if error.errno == errno.ENXIO else error.strerror
                raise LaunchError(f"What happens cannot be kept in {path}: {why or error}.") from error

    def write(self, data: bytes) -> None:
        if self._file is None:
            return
        left = memoryview(data)
        try:
            while left and (written := self._file.write(left)) is not None:
                left = left[written:]
            why = "its reader is too slow" if left else ""
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            self._console.tell(f"the file {self._path} ends here: {why}")
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
