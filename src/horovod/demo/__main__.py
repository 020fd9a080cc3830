"""Train a small network with one process and then with several, and say how much faster it was.

    python -m horovod.demo                       # one process, then two: this is `make demo`
    horovodrun -np 4 python -m horovod.demo      # one process, then the four of this job

Needs PyTorch and scikit-learn, whose handwritten digits it learns.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.demo.torch_digits import Figures

TRAINING = "horovod.demo.torch_digits"
NEEDED = {"torch": "torch", "sklearn": "scikit-learn"}
TIMEOUT_S = 600.0
ACCURACY_TO_REACH = 0.97
GOOD_SPEED_UP = 1.2


def launch(processes: int, epochs: int) -> str:
    """Train in a job of its own, show what it prints, and return its figures, as JSON."""
    print(f"\n$ horovodrun -np {processes} python -m {TRAINING}", flush=True)
    with tempfile.TemporaryDirectory(prefix="farandole-demo-") as folder:
        figures = Path(folder) / "figures.json"
        command = ["-np", str(processes), "-H", f"localhost:{processes}"]
        training = ["-m", TRAINING, "--epochs", str(epochs), "--figures", str(figures)]
        try:
            status = subprocess.run(
                [sys.executable, "-m", "horovod.runner.launch", *command, sys.executable, *training],
                timeout=TIMEOUT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            sys.exit(f"the run with {processes} process(es) did not end within {TIMEOUT_S:.0f} s")
        if status != 0:
            sys.exit(f"the run with {processes} process(es) failed with exit status {status}")
        return figures.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m horovod.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=20, help="times that the data are seen (20)")
    epochs = parser.parse_args().epochs
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(
            f"The demo trains with PyTorch on scikit-learn's digits, and {' and '.join(missing)} cannot be "
            f"imported by {sys.executable}. Install what is missing: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )

    import horovod.torch as hvd
    from horovod.demo import torch_digits

    hvd.init()
    if hvd.size() == 1:
        hvd.shutdown()
        alone, together = (torch_digits.Figures.of(launch(processes, epochs)) for processes in (1, 2))
    else:
        # The others wait for the end of the run alone.
        figures = launch(1, epochs) if hvd.rank() == 0 else None
        hvd.barrier()
        together = torch_digits.train(torch_digits.arguments(["--epochs", str(epochs)]))
        if hvd.rank() != 0:
            return
        assert figures is not None
        alone = torch_digits.Figures.of(figures)
    sum_up(alone, together)


def why_slow(speed_up: float, processes: int, cores: int, load: float) -> str:
    """Explain a small speed-up by the state of this machine; an empty text if nothing explains it.

    Args:
        cores: that these processes may use.
        load: programs that wanted a core during the last minute, these processes among them.
    """
    if speed_up >= GOOD_SPEED_UP:
        return ""
    if cores < processes:
        return f"{processes} processes share {cores} core(s) here"
    if load > cores + 1:
        return f"other programs want the {cores} cores of this machine, too: its load is {load:.0f}"
    return ""


def sum_up(alone: Figures, together: Figures) -> None:
    """Print both runs beside each other. The program fails if one of them has not learned."""
    print("\nSummary")
    for run in (alone, together):
        rate = f"{run.samples_per_s:.0f} samples/s"
        print(f"  {run.processes} process(es): test accuracy {run.accuracy:.2%}, {rate}")
    speed_up = together.samples_per_s / alone.samples_per_s
    reason = why_slow(speed_up, together.processes, len(os.sched_getaffinity(0)), os.getloadavg()[0])
    print(f"  speed-up: {speed_up:.2f}{reason and f' ({reason})'}")
    print(f"  gradients of {together.processes} processes went by {together.data_paths}", flush=True)
    for run in (alone, together):
        if run.accuracy < ACCURACY_TO_REACH:
            sys.exit(f"the run with {run.processes} process(es) stayed below {ACCURACY_TO_REACH:.0%}")


if __name__ == "__main__":
    main()
