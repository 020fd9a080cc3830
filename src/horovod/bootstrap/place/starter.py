"""Words of a rank to the process that started it: which process it is, whether a world needs it, and why its
script ends.

The starter's agent gives each rank the writing end of a pipe and names it in the environment. Others may
have inherited the variable without the pipe, or with another file of that number, so the pipe is named by
its number and its inode. Each word is a line of JSON, short enough to be written at once; nobody waits for
it to be read.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from horovod.bootstrap.place import proc
from horovod.bootstrap.records import record

__all__ = ["VARIABLE", "Word", "ends_rank", "has_given_up", "line_of", "parse", "tell", "tell_process"]

VARIABLE = "HOROVOD_STARTER"
"""``descriptor,inode``; the agent, which can import nothing of ours, writes it."""

_MOST_BYTES = 4096  # what a pipe takes in one piece

_log = logging.getLogger("horovod")


@dataclass(frozen=True)
class Word:
    """``in_world``: other ranks may need this one now. ``text``: why the script ends, as far as known; then
    ``because`` is the rank that failed before it, None if this one has failed by itself. ``final``: the
    script has failed, and nothing follows but the end of the process that was started for the rank.
    """

    in_world: bool
    text: str = ""
    because: int | None = None
    final: bool = False


def tell(word: Word, environ: Mapping[str, str] = os.environ) -> None:
    """Say it, if there is somebody to hear it."""
    line = f"{line_of(word)}\n".encode()
    if len(line) > _MOST_BYTES:
        line = f"{line_of(replace(word, text=word.text[: _MOST_BYTES // 16]))}\n".encode()
    _say(line, environ)


def tell_process(environ: Mapping[str, str] = os.environ) -> None:
    """Say that this process is the rank: a shell may be between it and who has started the rank. The agent
    takes it (`horovod.launch.agent.families`); nobody else hears of it.
    """
    line = json.dumps({"process": os.getpid(), "namespace": proc.namespace("pid")})
    _say(f"{line}\n".encode(), environ)


def has_given_up(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the process that started this one listens no more: the launcher is gone, and what it
    started is being ended.
    """
    try:
        pipe = _pipe(environ)
    except OSError:  # closed, as by a program in between
        return False
    if pipe is None:
        return False
    poller = select.poll()
    poller.register(pipe, 0)
    return any(events & select.POLLERR for _, events in poller.poll(0))


def _say(line: bytes, environ: Mapping[str, str]) -> None:
    try:
        pipe = _pipe(environ)
        if pipe is not None:
            os.write(pipe, line)
    except OSError as error:  # closed, as by a program in between; or nobody reads any more
        _log.debug("nothing can be told to the process that started this one: %s", error)


def _pipe(environ: Mapping[str, str]) -> int | None:
    descriptor, _, inode = environ.get(VARIABLE, "").partition(",")
    if not (descriptor.isdecimal() and inode.isdecimal()):
        return None
    status = os.fstat(int(descriptor))
    named = stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode)
    return int(descriptor) if named else None


def ends_rank() -> bool:
    """Return whether the end of this process is that of its rank: it was started for it, in a session of its
    own. A shell or a loop above it may run another program for the same rank.
    """
    return os.getsid(0) == os.getpid()


def line_of(word: Word) -> str:
    return json.dumps(asdict(word))


def parse(line: str) -> Word:
    """Parse a line of :func:`line_of`.

    Raises:
        ValueError: it makes no sense.
    """
    return record(Word)(json.loads(line))
