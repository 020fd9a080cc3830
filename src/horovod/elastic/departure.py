"""Notices that this process, or its whole machine, will be taken away soon: spot machines, batch systems.

A notice makes the driver do without the slot: at the next commit all ranks form a world without it, and this
process ends without an error. It comes as SIGTERM (while a function of ``elastic.run`` runs, unless the
script has a handler of its own), or as a file or an answer of a URL, for all processes of the host.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from horovod.bootstrap.place import starter
from horovod.bootstrap.store.membership import Leaving, Membership
from horovod.errors import HorovodInternalError

__all__ = ["Watch", "drained_by_signal", "noticed"]

_log = logging.getLogger("horovod")

POLL_S = 1.0

_told: Callable[[int, FrameType | None], None] | None = None  # the handler, while it is there
_mask: set[int] | None = None  # of the thread that forks, while it does


@contextmanager
def drained_by_signal(membership: Membership) -> Iterator[None]:
    """Within it, SIGTERM is a notice. A second one ends the process, as does the driver's, and that of an
    agent whose launcher is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield  # the script knows what to do
        return

    def told(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if starter.has_given_up():  # the launcher counts this process as lost already
            os.kill(os.getpid(), signal.SIGTERM)
        # The store is asked on a thread: this one may be anywhere.
        threading.Thread(target=_leave, args=(membership,), name="horovod-leave", daemon=True).start()

    global _told
    signal.signal(signal.SIGTERM, told)
    _told = told
    try:
        yield
    finally:
        _told = None
        if signal.getsignal(signal.SIGTERM) is told:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


# A forked child, such as a loader of data, is no worker: SIGTERM ends it. Until it has the default action the
# signal is held back, as an interpreter forgets in the child what it had not handled yet.


def _before_fork() -> None:
    global _mask
    if _told is not None:
        _mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    global _mask
    if _mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)
        _mask = None


def _after_fork_in_child() -> None:
    global _told, _mask
    if _told is not None and signal.getsignal(signal.SIGTERM) is _told:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _told = None
    if _mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)
        _mask = None


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


def _leave(membership: Membership) -> None:
    try:
        if membership.leave(Leaving("SIGTERM", host=False)):
            _log.warning("SIGTERM: this process leaves the job at the next commit.")
            return
    except HorovodInternalError as error:
        _log.warning("SIGTERM, and the driver cannot be told: %s", error)
    os.kill(os.getpid(), signal.SIGTERM)


class Watch:
    """Looks for a notice until there is one, on a thread of its own.

    Args:
        where: a path, or a URL beginning with ``http://`` or ``https://``; see `noticed`.
        found: is called with a sentence.
        poll_s: between two looks.
    """

    def __init__(self, where: str, found: Callable[[str], None], poll_s: float = POLL_S) -> None:
        self._where = where
        self._found = found
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="horovod-notice", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _look(self) -> None:
        while not self._stop.wait(self._poll_s):
            if why := noticed(self._where):
                self._found(why)
                return


def noticed(where: str) -> str:
    """The notice that a file, by being there, or a URL (see ``metadata``) gives now; empty: none."""
    if where.startswith(("http://", "https://")):
        from horovod.elastic.metadata import answered

        return answered(where)
    return f"the file {where} is there" if os.path.exists(where) else ""
