"""The standard input of a job: a script that every rank gets a copy of, or what rank 0 reads."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import select
import stat
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job

if TYPE_CHECKING:
    from horovod.launch.options.values import LaunchOptions
    from horovod.launch.output.console import Console

__all__ = ["MOST_SHARED_BYTES", "opened", "reads_a_script", "with_input"]

MOST_SHARED_BYTES = 64 << 20
"""Of what every rank gets: it is read to its end before the ranks start, and kept."""

_INPUT = 0
_PIECE_BYTES = 1 << 16
_LOOK_MS = 500
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_ITSELF = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs", "--rcfile", "--init-file"})
"""Options of Python and of shells that take the next word."""


def with_input(job: Job, options: LaunchOptions, console: Console) -> Job:
    """Add to a job the standard input of its ranks, as the options have it.

    Raises:
        ConfigError: it cannot be given to them.
    """
    choice, elastic = options.stdin, options.elastic
    if choice == "none":
        return job
    given = _shared(job.command, choice)
    if given is not None:
        if elastic is not None and elastic.state is not None:
            raise ConfigError(
                "--state: what ranks read on standard input would be gone when another horovodrun goes on "
                "with the job. Name the script: horovodrun ... python train.py"
            )
        return replace(job, call=given, call_is_input=True)
    if elastic is None:
        return replace(job, feeds=True)
    if choice is not None:
        raise ConfigError(
            "--stdin 0: rank 0 of an elastic job may be another process each time. --stdin all gives each a "
            "copy."
        )
    if _is_waiting():
        console.tell("standard input goes to no rank of an elastic job; --stdin all gives each a copy")
    return job


def reads_a_script(command: Sequence[str]) -> bool:
    """Return whether a command takes the text of a program from standard input: ``python -``, ``python``,
    ``bash -s`` and their like; also behind another program, as far as it is plain.
    """
    for index, word in enumerate(command):
        name = os.path.basename(word)
        is_python = _PYTHON.fullmatch(name) is not None
        if is_python or name in _SHELLS:
            return _script_is_input(command[index + 1 :], is_python=is_python, is_first=index == 0)
    return False


def _script_is_input(words: Sequence[str], *, is_python: bool, is_first: bool) -> bool:
    index = 0
    while index < len(words):
        word = words[index]
        if word in _ITSELF:
            return True
        if not word.startswith(("-", "+")):
            return False  # a file
        if is_python:
            if word.startswith(("-c", "-m", "-h", "-V", "-i", "--help", "--version")):
                return False
        elif not word.startswith("--"):
            if "c" in word:
                return False
            if "s" in word:
                return True
        takes_next = word in _WITH_VALUE or (not is_python and word.endswith(("o", "O")))
        index += 2 if takes_next else 1
    return is_first  # another program in front may take what we think is an interpreter for something else


def _shared(command: Sequence[str], choice: str | None) -> list[memoryview] | None:
    """Read to its end the standard input of which every rank gets a copy; None: ranks get no copy.

    Raises:
        ConfigError: there is no script, or too much.
    """
    script = choice is None and reads_a_script(command)
    if not script and choice != "all":
        return None
    if script and os.isatty(_INPUT) and not _ITSELF & {*command}:
        raise ConfigError(
            f"{command[0]} has no script, and ranks have no terminal to type one at. Name the script: "
            f"horovodrun ... {command[0]} train.py"
        )
    pieces, size = [], 0
    while data := _next_piece():
        pieces.append(memoryview(data))
        size += len(data)
        if size > MOST_SHARED_BYTES:
            raise ConfigError(
                f"Standard input has more than {MOST_SHARED_BYTES >> 20} MiB, which is the most that every "
                "rank gets a copy of. Let the ranks read a file, or only rank 0 (--stdin 0)."
            )
    if script and not size:
        raise ConfigError(
            f"{command[0]} takes its script from standard input, and that is empty: nothing would run. Name "
            f"the script: horovodrun ... {command[0]} train.py"
        )
    return pieces


def _next_piece() -> bytes:
    """Empty at the end.

    Raises:
        ConfigError: it cannot be read, as a terminal that is gone.
    """
    while True:
        try:
            return os.read(_INPUT, 1 << 20)
        except BlockingIOError:  # another program that has it open does not want to wait
            select.select([_INPUT], [], [])
        except OSError as error:
            if error.errno == errno.EBADF:  # open for writing only: so nohup takes a terminal away
                return b""
            raise ConfigError(f"Standard input cannot be read: {error.strerror}.") from error


def _is_waiting() -> bool:
    """Return whether something is to be read, which nobody would notice if it were lost."""
    status = os.fstat(_INPUT)
    if stat.S_ISREG(status.st_mode):
        return os.lseek(_INPUT, 0, os.SEEK_CUR) < status.st_size
    if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
        return False
    count = array.array("i", [0])
    fcntl.ioctl(_INPUT, termios.FIONREAD, count)
    return count[0] > 0


@contextmanager
def opened(job: Job) -> Iterator[int]:
    """The descriptor that rank 0 reads as its standard input; -1: it reads nothing.

    A terminal is not handed to a rank: that would go on to take what is typed when this process has been sent
    to the background. It gets a pipe, and what is typed is copied while this process is in the foreground.
    """
    if not job.feeds:
        yield -1
        return
    if not os.isatty(_INPUT):
        descriptor = fcntl.fcntl(_INPUT, fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    read_end, write_end = os.pipe()
    over = threading.Event()
    threading.Thread(target=_copy, args=(write_end, over), name="terminal", daemon=True).start()
    try:
        yield read_end
    finally:
        over.set()
        os.close(read_end)


def _copy(sink: int, over: threading.Event) -> None:
    """Copy from the terminal, until its end (Ctrl-D), or until nobody reads."""
    poller = select.poll()
    poller.register(_INPUT, select.POLLIN)
    try:
        while not over.is_set():
            if not poller.poll(_LOOK_MS):
                continue
            if not _in_foreground():
                over.wait(_LOOK_MS / 1000)
                continue
            data = os.read(_INPUT, _PIECE_BYTES)
            if not data:
                break
            while data:
                data = data[os.write(sink, data) :]
    except OSError:
        pass  # the terminal is gone, or the rank is
    finally:
        os.close(sink)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_INPUT) == os.getpgrp()
    except OSError:  # the terminal of another session: nobody stops us for reading
        return True
