"""Signals to the launcher, which it hands to the ranks."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from horovod.bootstrap.place.proc import caught_here

__all__ = ["PASSED_ON", "Signals", "signal_name"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGWINCH, signal.SIGCONT)
"""Signals that mean something to ranks that have a handler for them, and end nothing."""


class Signals:
    """Collects signals while it is entered; each arrival makes `fileno` readable.

    SIGINT, SIGTERM and SIGHUP are in `arrived`: they end the job. Those of `PASSED_ON` are in `passing`; a
    handler that this process had for one of them is called as well.

    Signals that were ignored before (``nohup``, a shell's background job) stay ignored. Outside the main
    thread Python cannot handle signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self.passing: list[int] = []
        self._previous: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._previous_wakeup = -1

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        """Make `fileno` unreadable until the next signal."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass  # nothing arrived

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for signum in _ENDING:
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._arrive)
            for signum in PASSED_ON:
                known = signal.getsignal(signum)
                # A handler that Python has not set (faulthandler's) stays.
                if callable(known) or (known == signal.SIG_DFL and not caught_here(signum)):
                    self._previous[signum] = signal.signal(signum, self._pass)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._read)
        os.close(self._write)

    def _arrive(self, signum: int, frame: FrameType | None) -> None:
        self.arrived.append(signum)

    def _pass(self, signum: int, frame: FrameType | None) -> None:
        self.passing.append(signum)
        before = self._previous.get(signum)
        if callable(before):
            before(signum, frame)


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"
