"""The command. It finds out whether this process is in a job, checks what it needs, then measures or starts
a job."""

from __future__ import annotations

import os
import sys

from horovod.bench.options import parse
from horovod.bench.requirements import unmet
from horovod.bench.start import start
from horovod.bootstrap.place.topology import read_place
from horovod.errors import ConfigError


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
