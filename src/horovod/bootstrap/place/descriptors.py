"""Ownership of descriptors: the owner closes them, unless it has given them away."""

from __future__ import annotations

import os
import resource

from horovod.bootstrap.place.proc import open_descriptors
from horovod.errors import BackendError, LaunchError

__all__ = ["Descriptors", "make_room", "require_room"]

_MARGIN = 16  # what is open for a moment only, while the ranks connect
_RESERVE = 128  # for what the program opens while it runs, if the hard limit allows it


class Descriptors:
    """Open descriptors that belong to one owner; closed together unless released."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def adopt(self, descriptor: int) -> int:
        """Own ``descriptor`` from now on."""
        self._open.add(descriptor)
        return descriptor

    def release(self, descriptor: int) -> int:
        """Give ``descriptor`` to somebody else; -1 stands for none and passes through."""
        self._open.discard(descriptor)
        return descriptor

    def close(self) -> None:
        """Close what is still owned. Idempotent."""
        while self._open:
            os.close(self._open.pop())


def make_room(more: int, what: str, perhaps: int = 0) -> None:
    """Let this process open ``more`` descriptors for ``what``, and ``perhaps`` so many beside, as far as the
    hard limit goes: raises its soft limit where that is too low.

    Raises:
        BackendError: the hard limit is too low as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_descriptors() + more + _MARGIN
    wanted = needed + perhaps + _RESERVE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BackendError(
            f"{what} needs about {needed} open files in this process, which may have {hard}. Raise the hard "
            "limit: `ulimit -Hn` of the shell, LimitNOFILE= of a service, --ulimit nofile= of a container.",
            library="system",
        )
    room = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))


def require_room(more: int, what: str) -> None:
    """Check that this process can open ``more`` descriptors for ``what``. The limit stays as it is: children
    inherit it.

    Raises:
        LaunchError: its soft limit is too low.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = open_descriptors() + more
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise LaunchError(
            f"{what} needs {needed} open files and more, the limit is {soft}. Raise it: `ulimit -n 1024` in "
            "the shell, LimitNOFILE= of a service, --ulimit nofile= of a container."
        )
