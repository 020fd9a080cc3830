"""Processes and descriptors as Linux shows them in /proc. Source: proc(5).

Also part of the agent's text (`horovod.launch.agent.bundle`): only the standard library, and Python 3.7.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Stat",
    "boot_id",
    "caught_here",
    "every_process",
    "lines",
    "namespace",
    "open_descriptors",
    "signals_of",
    "stat_of",
    "value_of",
]


class Stat:
    """State of a process from /proc/pid/stat."""

    def __init__(self, line: bytes) -> None:
        # The name in parentheses may hold anything; then comes the third field.
        fields = line.rpartition(b")")[2].split()
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.started = int(fields[19])
        """Ticks from boot to its start."""


def stat_of(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Stat(file.read())
    except (OSError, IndexError):
        return None


def every_process() -> Iterator[tuple[int, Stat]]:
    """Every process that is seen here, by its id."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is not None:
                yield int(name), stat


def lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def value_of(name: str, path: str | os.PathLike[str]) -> str | None:
    """Return the text behind the first ``name:`` of a file; None if there is none."""
    for line in lines(path):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def open_descriptors() -> int:
    """Count the descriptors of this process, with the one that looks."""
    return len(os.listdir("/proc/self/fd"))


def boot_id() -> str:
    """Of the running kernel: another one after each boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def namespace(kind: str) -> int:
    """The inode of this process's namespace ``net``, ``pid`` ..."""
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def signals_of(path: str, kind: str) -> int:
    """A set of signals in a file ``status``, as bits: ``SigCgt`` (handled), ``SigBlk`` (blocked)."""
    try:
        return int(value_of(kind, path) or "0", 16)
    except ValueError:
        return 0


def caught_here(signum: int) -> bool:
    """Return whether this process has a handler for a signal, whoever has set it."""
    return bool(signals_of("/proc/self/status", "SigCgt") & (1 << (signum - 1)))
