"""A worker's side of the injector: it tells where it is, and suffers what the test wants there.

Imports the standard library only: a worker tells of its import of the rest.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import threading
import time
from typing import Any

__all__ = ["ADDRESS_VARIABLE", "Injected", "Link"]

ADDRESS_VARIABLE = "FARANDOLE_INJECTOR"
"""The test's socket; every process of its job has it in its environment."""


class Injected(RuntimeError):
    """What the test wanted to be raised."""


class Link:
    """The connection with the test. A worker is at one point at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect("\0" + os.environ[ADDRESS_VARIABLE])
        self._answers = self._socket.makefile("rb")
        self.at(
            "start",
            worker=int(os.environ["HOROVOD_ELASTIC_WORKER"]),
            pid=os.getpid(),
            host=os.environ["HOROVOD_HOSTNAME"],
        )

    def at(self, point: str, **facts: Any) -> str:
        """Tell the test that this process is at ``point``; comes back when it may go on.

        Returns:
            ``go``, or another word that the program and the test have agreed on.

        Raises:
            Injected: the test wants it.
            SystemExit: it wants the script to end; the status is that of success.
        """
        with self._lock:
            line = json.dumps({"point": point, "time": time.monotonic(), **facts})
            self._socket.sendall(line.encode() + b"\n")
            answer = self._answers.readline().decode().strip()
        if answer == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif answer == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif answer in ("raise", "raise and stay"):
            if answer == "raise and stay":
                atexit.register(self.at, "exit")
            raise Injected(f"injected at {point}")
        elif answer == "end":
            raise SystemExit(0)
        elif not answer:
            os._exit(70)  # the test is gone
        return answer
