"""Signals to the launcher, which it forwards to the ranks."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Signals", "signal_name"]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Collects SIGINT, SIGTERM and SIGHUP while it is entered; each arrival makes `fileno` readable.

    Signals that were ignored before (``nohup``, a shell's background job) stay ignored. Outside the main
    thread Python cannot handle signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.arrived: list[int] = []
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
            for signum in _FORWARDED:
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._arrive)
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


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"
