"""Running the real ``horovodrun`` in tests, and watching processes end. Every wait here has a limit."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import horovod

LIMIT_S = 20.0
COMMAND = (sys.executable, "-m", "horovod.runner.launch")
PYTHON = sys.executable

# Rank-dependent shell commands for workers: starting a shell is ten times cheaper than starting Python.
WAIT = "exec sleep 60"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The test's own environment without any setting of a job, with `extra`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMP_"))}
    paths = [str(Path(horovod.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    clean["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return {**clean, **(extra or {})}


def horovodrun(
    *words: str, extra: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    return subprocess.run(
        [*COMMAND, *words],
        env=environment(extra),
        cwd=cwd,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )


class Running:
    """A ``horovodrun`` that is under way."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdout = process.stdout
        self._stderr = process.stderr

    def lines(self, count: int) -> list[str]:
        """The next `count` lines of standard output."""
        deadline = time.monotonic() + LIMIT_S
        found = b""
        while found.count(b"\n") < count:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"only this came in {LIMIT_S} s: {found!r}"
            # Byte by byte, so that nothing beyond these lines is taken.
            byte = os.read(self._stdout.fileno(), 1)
            assert byte, f"standard output ended after {found!r}: {self._stderr.read()!r}"
            found += byte
        return found.decode().splitlines()

    def numbers(self, count: int) -> list[int]:
        """The numbers that the next `count` lines consist of, for example process ids."""
        return [int(line.partition(">:")[2]) for line in self.lines(count)]

    def wait_until_blocked(self) -> None:
        """Until nothing more fits into the pipe that is its standard output."""
        deadline = time.monotonic() + LIMIT_S
        capacity = fcntl.fcntl(self._stdout, fcntl.F_GETPIPE_SZ)
        waiting = bytearray(4)
        while int.from_bytes(waiting, sys.byteorder) < capacity - select.PIPE_BUF:
            assert time.monotonic() < deadline, f"{waiting!r} of {capacity} bytes"
            fcntl.ioctl(self._stdout, termios.FIONREAD, waiting)
            time.sleep(0.01)  # nothing tells when a pipe becomes full

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def finish(self) -> tuple[int, bytes, bytes]:
        """Wait for its end; status and the rest of its output."""
        stdout, stderr = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, stdout, stderr


@contextmanager
def running(*words: str, extra: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start it; whatever happens, it has ended when the block is left."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        env=environment(extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class Watched:
    """Processes that must end. Holds them by descriptor, so a number used again does not confuse it."""

    def __init__(self, *pids: int) -> None:
        self._descriptors = {pid: os.pidfd_open(pid) for pid in pids}

    def still_running(self, timeout_s: float) -> list[int]:
        """Those that have not ended within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        left = []
        for pid, descriptor in self._descriptors.items():
            ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                left.append(pid)
        return left

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass  # as it should be
            os.close(descriptor)
