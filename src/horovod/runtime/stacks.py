"""Stacks of all threads on SIGQUIT, which ``horovodrun`` passes on to every rank."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Mapping

from horovod.bootstrap.place.proc import caught_here, signals_of
from horovod.bootstrap.place.starter import VARIABLE

__all__ = ["show_on_quit"]

_STDERR = 2


def show_on_quit(environ: Mapping[str, str]) -> None:
    """Let SIGQUIT print the Python stacks of all threads, in place of ending this process. Works while the
    interpreter lock is held elsewhere and while a collective waits.

    Only for a rank of a launcher of ours: at a terminal Ctrl-\\ goes on to end a program. A handler that the
    program has set stays, and so does the wish to ignore the signal.
    """
    if VARIABLE not in environ:
        return
    ignored = signals_of("/proc/self/status", "SigIgn") & (1 << (signal.SIGQUIT - 1))
    if not ignored and not caught_here(signal.SIGQUIT):
        faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True, chain=False)
