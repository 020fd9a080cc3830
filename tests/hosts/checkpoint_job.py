"""The ``train.py`` of a job that Slurm asks for a checkpoint by SIGUSR1, and starts again.

The signal reaches each rank at a moment of its own, so the ranks agree at the end of a step. Rank 0 then
writes the checkpoint and lets Slurm start the job again; the second run goes on from there.
"""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from horovod import _core
from horovod.runtime import lifecycle

MOST_STEPS = 100_000
FURTHER_STEPS = 3


def say(line: str) -> None:
    """In one call, so that lines of different ranks do not mix."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def summed(name: str, number: float) -> float:
    """A sum over all ranks."""
    numbers = array.array("d", [number])
    address = numbers.buffer_info()[0]
    tensor = address, address, _core.FLOAT64, (1,)
    engine = lifecycle.start().engine
    engine.submit(_core.ALLREDUCE, name, tensor, _core.SUM, 1.0, 1.0, -1, 0, _core.BLOCKING)
    return numbers[0]


def main() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda signum, frame: asked.append(signum))
    folder = Path(sys.argv[sys.argv.index("--resume") + 1])
    folder.mkdir(exist_ok=True)
    checkpoint = folder / "step"
    begin = int(checkpoint.read_text()) if checkpoint.exists() else 0
    runtime = lifecycle.start()
    rank = runtime.topology.rank
    say(f"rank {rank} begins at step {begin}, restarts {os.environ.get('SLURM_RESTART_COUNT', '0')}")
    end = begin + FURTHER_STEPS if begin else MOST_STEPS
    for step in range(begin, end):
        time.sleep(0.01)  # the work of a step
        any_asked = summed("asked", float(bool(asked)))
        if step == begin + 1:
            (folder / f"trains-{begin}-{rank}").touch()
        if any_asked:
            (folder / f"committed-{rank}").write_text(str(step))
            summed("committed", 1.0)  # Slurm kills the others as soon as rank 0 has asked it
            if rank == 0:
                checkpoint.write_text(str(step + 1))
                subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
            break
    say(f"rank {rank} has ended its steps")
    lifecycle.stop()


if __name__ == "__main__":
    main()
