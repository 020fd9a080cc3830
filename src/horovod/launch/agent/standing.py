"""Detection of a rank that stands still: a signal has stopped its process, or the control group is frozen.

The kernel tells the agent when a child of its is stopped. But the rank may be further down (``sh -c "python
train.py; ..."``), and nothing tells of a freeze. So a rank of an elastic job says at its first ``init()``
which process it is (`horovod.bootstrap.place.starter`), and the agent looks at it now and then: a few
small files.
"""

from __future__ import annotations

import json
import os

from horovod.bootstrap.place.control_groups import is_frozen
from horovod.bootstrap.place.proc import lines, namespace, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from horovod.bootstrap.place.proc import Stat

__all__ = ["AGAIN_S", "LOOK_S", "Process", "is_name_of_process", "named_by"]

LOOK_S = 2.0
AGAIN_S = 0.2  # while one stands still: others may wait for it

_BEGIN = b'{"process": '


class Process:
    """A process, and no later one with its number."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._started = started

    def stands(self) -> bool:
        """True while the process does nothing until somebody continues it. A debugger that holds it is no
        such reason.
        """
        stat = self._stat()
        return stat is not None and (stat.state == "T" or is_frozen(self.pid))

    def has_ended(self) -> bool:
        stat = self._stat()
        return stat is None or stat.state in "ZX"

    def _stat(self) -> Stat | None:
        stat = stat_of(self.pid)
        return stat if stat is not None and stat.started == self._started else None


def is_name_of_process(line: bytes) -> bool:
    """True if a word of a rank says which process it is."""
    return line.startswith(_BEGIN)


def named_by(line: bytes, candidates: Callable[[], Iterable[int]]) -> Process | None:
    """The process that such a word names; None: there is none, or the word makes no sense. ``candidates``
    finds those of a word from another namespace, where they have other numbers.
    """
    try:
        word = json.loads(line)
    except (ValueError, RecursionError):
        return None
    pid, where = word.get("process"), word.get("namespace")
    if type(pid) is not int or pid <= 0:
        return None
    if where == namespace("pid"):
        found: int | None = pid
    else:
        found = next((each for each in candidates() if _is(each, pid, where)), None)
    stat = stat_of(found) if found is not None else None
    return None if found is None or stat is None else Process(found, stat.started)


def _is(candidate: int, pid: int, where: Any) -> bool:
    """True if this process of ours has the number `pid` in the namespace `where`."""
    try:
        if os.stat(f"/proc/{candidate}/ns/pid").st_ino != where:
            return False
    except OSError:  # it has ended, or is somebody else's
        return False
    numbers = [line for line in lines(f"/proc/{candidate}/status") if line.startswith("NSpid:")]
    return bool(numbers) and numbers[0].split()[-1] == str(pid)
