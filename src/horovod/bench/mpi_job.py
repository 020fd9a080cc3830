"""A job of MPI beside the own job. It is started once, measures on request, and sleeps in between.

Its processes (`mpi.py`) connect to a socket of ours and wait there. They take no CPU from the others then;
waiting in MPI would spin. Requests and replies are lines of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from horovod.errors import BackendError, LaunchError

__all__ = ["MpiJob", "MpiRequest", "find_mpirun", "mpirun_command", "mpirun_environment"]

_START_TIMEOUT_S = 60.0
_REPLY_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 10.0
_LAST_LINES = 10


@dataclass(frozen=True)
class MpiRequest:
    """Request for the next measurement. ``check``: check first that the result is right."""

    operation: str
    dtype: str
    op: str
    size_bytes: int
    tensors: int
    asynchronous: int
    check: bool
    min_time_s: float
    max_calls: int


def find_mpirun() -> str | None:
    """The ``mpirun`` beside this Python, else the one in ``PATH``."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")


def mpirun_command(mpirun: str, processes: int) -> list[str]:
    """The start of the command line. Ranks that have no CPU of their own are not bound to any."""
    crowded = processes > len(os.sched_getaffinity(0))
    return [
        mpirun,
        *(["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"] if crowded else []),
        "-n",
        str(processes),
    ]


def mpirun_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment for an MPI job of its own, also from inside a job that MPI started."""
    foreign = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HOROVOD_")
    clean = {name: value for name, value in inherited.items() if not name.startswith(foreign)}
    return clean | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class MpiJob:
    """The processes of MPI, for those who let them measure. A context manager.

    Raises:
        LaunchError: ``mpirun`` cannot be started, or its processes do not come; with its last words.
    """

    def __init__(self, mpirun: str, processes: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-mpi-")  # readable by its owner alone
        self._said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._lines: list[IO[str]] = []
        self._process: subprocess.Popen[bytes] | None = None
        path = str(Path(self._folder.name) / "socket")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(processes)
                self._process = subprocess.Popen(
                    [*mpirun_command(mpirun, processes), sys.executable, "-m", "horovod.bench.mpi", path],
                    env=mpirun_environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=self._said,
                    stderr=subprocess.STDOUT,
                )
                self._accept(listener, processes)
            self._folder.cleanup()  # all are connected; now no file stays if this process dies
        except OSError as error:
            self.close()
            raise LaunchError(f"{mpirun} could not be started: {error}") from error
        except BaseException:
            self.close()
            raise

    def _accept(self, listener: socket.socket, processes: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        listener.settimeout(0.2)
        while len(self._lines) < processes:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self._process.poll() is None and time.monotonic() < deadline:
                    continue
                came = f"{len(self._lines)} of {processes} processes of MPI came"
                raise LaunchError(f"{came}. {self._last_words()}") from None
            connection.settimeout(_REPLY_TIMEOUT_S)
            with connection:  # the file keeps it open
                self._lines.append(connection.makefile("rw"))

    def measure(self, request: MpiRequest) -> dict[str, Any]:
        """Let all processes measure; the fields of a ``Timing``.

        Raises:
            BackendError: a result was wrong, or MPI failed.
        """
        replies = []
        try:
            for lines in self._lines:
                lines.write(json.dumps(dataclasses.asdict(request)) + "\n")
                lines.flush()
            for lines in self._lines:
                replies.append(json.loads(lines.readline()))
        except (OSError, ValueError) as error:
            raise BackendError(f"MPI: {request.operation} failed. {self._last_words()}") from error
        for reply in replies:
            if reply["error"]:
                raise BackendError(f"MPI: {reply['error']}")
        timing: dict[str, Any] = next(reply["timing"] for reply in replies if reply["rank"] == 0)
        return timing

    def _last_words(self) -> str:
        self._said.seek(0)
        return "".join(["Its last lines:\n", *self._said.readlines()[-_LAST_LINES:]])

    def close(self) -> None:
        """End the processes."""
        for lines in self._lines:
            lines.close()
        if self._process is not None:
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.terminate()
                try:
                    self._process.wait(_END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
        self._said.close()
        self._folder.cleanup()

    def __enter__(self) -> MpiJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
