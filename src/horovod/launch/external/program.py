"""The program that starts the ranks, as a child of ours."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

from horovod.bootstrap.place.proc import every_process
from horovod.errors import LaunchError
from horovod.launch.external.order import StartLine

__all__ = ["Program"]


class Program:
    """Runs from its making to ``close``, in a session of its own: Ctrl-C reaches us only, who decide.

    Raises:
        LaunchError: it cannot be started.
    """

    def __init__(self, line: StartLine) -> None:
        try:
            self._child = subprocess.Popen(
                line.words, env=line.environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"{line.words[0]} cannot be started: {error.strerror}") from error
        self._ended = os.pidfd_open(self._child.pid)

    def fileno(self) -> int:
        """Readable when it has ended."""
        return self._ended

    def send(self, signum: int) -> None:
        """Send a signal to it and to what it has started here."""
        try:
            os.killpg(self._child.pid, signum)
        except ProcessLookupError:
            pass  # it has ended

    def end(self, patience_s: float, tell: Callable[[signal.Signals], None]) -> int | None:
        """Wait until it has ended, so long before each signal, which ``tell`` is told. Returns its status,
        None if it did not end by itself.
        """
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            if signum is not None:
                tell(signum)
                self.send(signum)
            try:
                status = self._child.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
            return status if signum is None else None
        return None

    def close(self) -> None:
        """End it, and what it has left behind, such as ssh clients of hosts that are silent."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        os.close(self._ended)
        for pid, stat in every_process():
            if stat.session == self._child.pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue  # it has ended
