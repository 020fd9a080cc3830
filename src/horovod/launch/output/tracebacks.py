"""Tracebacks of Python in what ranks print: one that several ranks have is shown once.

A mistake in a script is often made by every rank, and each prints the same lines. The first one is shown as
it comes. Another rank's is held back from its first line to its last, and left out if it is the same; one
line then names these ranks. Files of the output have all of it.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Tracebacks"]

_HEAD = b"Traceback (most recent call last):"
_LINKS = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_INTERRUPT = b"KeyboardInterrupt"
_CHILD = re.compile(rb"Process \S+:")  # what multiprocessing says before the traceback of a child
_MARK = b"<stderr>:"
_MOST_LINES = 400  # of one that is held back
_MOST_KNOWN = 16
_QUIET_S = 1.0  # after the last one that was left out, its ranks are named


@dataclass(eq=False)
class _Block:
    """A traceback that is shown. ``complete``: its last line has come."""

    label: int
    texts: list[bytes]
    complete: bool = False
    others: set[int] = field(default_factory=set)


@dataclass
class _Writer:
    """The standard error of one rank."""

    label: int
    shows: _Block | None = None
    """Text that is printed now, and shown."""
    held: list[bytes] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    left: int = 0
    """Last lines that are to come: more than one where several processes of a rank print at the same time."""
    causes: list[bytes] = field(default_factory=list)
    """The last lines that have come."""
    ended: bool = False
    """True if the held traceback has its last line, and the one that it may repeat has not."""
    links: list[bytes] = field(default_factory=list)
    """Lines between two tracebacks of one chain, the first of which was left out."""
    linking: bool = False

    def is_last(self, text: bytes) -> bool:
        """Return whether the traceback ends here, with its exception: lines of its frames are indented."""
        if not text or text.startswith((b" ", b"\t")) or _CHILD.fullmatch(text):
            return False
        if text == _HEAD:
            self.left += 1
            return False
        self.left -= 1
        self.causes.append(text)
        return self.left <= 0


class Tracebacks:
    """``tell`` says which ranks had the same one. For one thread, but for `leave_out_interrupts`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._known: deque[_Block] = deque(maxlen=_MOST_KNOWN)
        self._writers: dict[object, _Writer] = {}
        self._told_due = 0.0
        self._interrupted = False

    def leave_out_interrupts(self) -> None:
        """Leave out from now on every traceback that ends with KeyboardInterrupt: Ctrl-C was pressed."""
        self._interrupted = True

    def shows(self, lines: Sequence[str]) -> bool:
        """Return whether these lines end with a traceback that was shown."""
        encoded = [line.encode("utf-8", "replace") for line in lines]
        starts = [number for number, line in enumerate(encoded) if line == _HEAD]
        last = encoded[starts[-1] :] if starts else encoded  # of a long one only the end is there
        return bool(last) and any(
            block.complete and (block.texts == last if starts else block.texts[-len(last) :] == last)
            for block in self._known
        )

    def feed(self, key: object, label: int, lines: bytes) -> bytes:
        """Take whole lines with their prefixes; give back what is to be shown of them now."""
        writer = self._writers.setdefault(key, _Writer(label))
        within = writer.shows or writer.held or writer.linking or self._interrupted
        if not within and _HEAD not in lines:
            shown = lines
        else:
            shown = b"".join(self._take(writer, line) for line in lines.splitlines(keepends=True))
        if shown and self._told_due and time.monotonic() >= self._told_due:
            self.name_ranks()
        return shown

    def settle(self) -> list[tuple[object, bytes]]:
        """Text that other writers have held back, to be shown now, as one that they may have repeated has
        been completed.
        """
        found = []
        for key, writer in self._writers.items():
            if writer.ended:
                found.append((key, self._compare(writer)))
        return [(key, data) for key, data in found if data]

    def close(self, key: object) -> bytes:
        """This writer will write no more."""
        writer = self._writers.pop(key, None)
        if writer is None:
            return b""
        if writer.shows is not None:
            writer.shows.complete = True
        for block in self._known:
            # It was ended while it printed.
            if writer.held and block.complete and block.texts[: len(writer.texts)] == writer.texts:
                block.others.add(writer.label)
                return b""
        return b"".join([*writer.links, *writer.held])

    def name_ranks(self) -> None:
        """Say whose tracebacks were left out."""
        self._told_due = 0.0
        for block in self._known:
            if block.others:
                ranks = sorted(block.others)
                block.others = set()
                few = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
                who = f"rank {few}" if len(ranks) == 1 else f"{len(ranks)} ranks ({few})"
                self._tell(f"{who} printed the same traceback as rank {block.label}")

    def _take(self, writer: _Writer, line: bytes) -> bytes:
        text = line.partition(_MARK)[2].rstrip(b"\r\n")
        if writer.shows is not None:
            writer.shows.texts.append(text)
            if writer.is_last(text):
                writer.shows.complete = True
                writer.shows = None
            return line
        if writer.ended:  # what follows waits as well
            return self._give_up(writer) + self._take(writer, line)
        if writer.held:
            writer.held.append(line)
            writer.texts.append(text)
            if writer.is_last(text):
                return self._compare(writer)
            return self._give_up(writer) if len(writer.held) > _MOST_LINES else b""
        if text == _HEAD:
            return self._begin(writer, line)
        child = self._interrupted and _CHILD.fullmatch(text)
        if child or (writer.linking and (not text or text in _LINKS)):
            writer.links.append(line)
            writer.linking = True
            return b""
        before, writer.links, writer.linking = b"".join(writer.links), [], False
        return before + line

    def _begin(self, writer: _Writer, line: bytes) -> bytes:
        writer.left, writer.causes = 1, []
        if self._interrupted or any(block.label != writer.label for block in self._known):
            writer.held, writer.texts = [line], [_HEAD]
            return b""
        before, writer.links, writer.linking = b"".join(writer.links), [], False
        writer.shows = _Block(writer.label, [_HEAD])
        self._known.append(writer.shows)
        return before + line

    def _compare(self, writer: _Writer) -> bytes:
        """Return the part to show of a traceback that is held back as a whole."""
        texts = writer.texts
        if self._interrupted and all(cause.partition(b":")[0] == _INTERRUPT for cause in writer.causes):
            return self._leave_out(writer)
        waits = False
        for block in self._known:
            if block.label == writer.label:
                continue
            if block.complete and block.texts == texts:
                block.others.add(writer.label)
                self._told_due = time.monotonic() + _QUIET_S
                return self._leave_out(writer)
            waits = waits or (not block.complete and block.texts == texts[: len(block.texts)])
        writer.ended = waits
        if waits:
            return b""
        self._known.append(_Block(writer.label, texts, complete=True))
        return self._give_up(writer)

    def _leave_out(self, writer: _Writer) -> bytes:
        writer.held, writer.texts, writer.links, writer.ended, writer.linking = [], [], [], False, True
        return b""

    def _give_up(self, writer: _Writer) -> bytes:
        """Show what was held back."""
        shown = b"".join([*writer.links, *writer.held])
        writer.held, writer.texts, writer.links, writer.ended, writer.linking = [], [], [], False, False
        return shown
