"""Starting a job on this machine, whose processes get the same command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from horovod.bench.options import Options
from horovod.errors import HorovodError
from horovod.launch.contracts.errors import exit_status
from horovod.launch.contracts.job import Job
from horovod.launch.output.console import Console
from horovod.launch.run import run_job

__all__ = ["start"]

_PREFIX = re.compile(r"^\[\d+\]<std(?:out|err)>:", re.MULTILINE)


class _Plain:
    """A stream without the launcher's prefixes. Only one rank writes, and tables must stay readable."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> object:
        return self._stream.write(_PREFIX.sub("", text))

    def flush(self) -> object:
        return self._stream.flush()


def start(options: Options, words: Sequence[str]) -> int:
    """Run ``words`` in ``options.processes`` processes; the exit status."""
    assert options.processes is not None
    progress = options.progress
    if progress == "auto":  # the processes write to pipes and cannot see it
        progress = "line" if sys.stderr.isatty() else "lines"
    job = Job(
        command=(sys.executable, "-m", "horovod.bench", *words, "--progress", progress),
        processes=options.processes,
    )
    try:
        run_job(job, os.environ, Console(stdout=_Plain(sys.stdout), stderr=_Plain(sys.stderr)))
    except HorovodError as error:
        print(f"horovod.bench: {error}", file=sys.stderr)
        return exit_status(error)
    return 0
