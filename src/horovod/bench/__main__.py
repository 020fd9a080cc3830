"""The command. It finds out whether this process is in a job, checks what it needs, then measures or starts
a job on this machine, whose processes get the same command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from horovod.bench.options import Options, parse
from horovod.bench.requirements import unmet
from horovod.bootstrap.place.topology import read_place
from horovod.errors import ConfigError, HorovodError
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


def main() -> int:
    words = sys.argv[1:]
    try:
        place = read_place(os.environ)
    except ConfigError as error:
        return _refuse(str(error))
    options = parse(words, silent=place.rank != 0)
    in_job, asked = bool(place.launcher), options.processes
    wrong = ""
    if in_job and asked not in (None, place.size):
        wrong = f"-np {asked}: this job has {place.size} processes already; leave it out"
    elif not in_job and asked is None:
        wrong = (
            "how many processes? Give -np N, or start it in a job: horovodrun -np N python -m horovod.bench"
        )
    ranks = place.size if in_job else asked or 1
    ranks_here = place.local[1] if in_job and place.local else ranks
    wrong = wrong or unmet(options, ranks, ranks_here)
    if wrong and place.rank > 0 and ranks_here == ranks:
        return 0  # rank 0 finds the same; a failure here could end the job before rank 0 has spoken
    if wrong:
        return _refuse(wrong)
    if not in_job:
        return start(options, words)
    from horovod.bench.rank import run  # it imports PyTorch: only where something is measured

    return run(options)


def _refuse(why: str) -> int:
    print(f"horovod.bench: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
