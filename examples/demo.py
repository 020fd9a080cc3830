"""Run the digits example with one and with two processes, and sum up: this is `make demo`."""

import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).with_name("torch_digits.py")
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
TIMEOUT_S = 300.0
ACCURACY_TO_REACH = 0.97


@dataclass(frozen=True)
class Run:
    processes: int
    accuracy: str
    samples_per_s: float
    data_paths: str


def train(processes: int) -> Run:
    """Launch the example, show what it prints, and read the three figures at its end."""
    command = [str(HOROVODRUN), "-np", str(processes), sys.executable, str(EXAMPLE)]
    print(f"\n$ horovodrun -np {processes} python {EXAMPLE.parent.name}/{EXAMPLE.name}", flush=True)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        overdue = threading.Timer(TIMEOUT_S, job.terminate)
        overdue.start()
        assert job.stdout is not None
        for line in job.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        overdue.cancel()
    if job.returncode != 0:
        sys.exit(f"the run with {processes} process(es) failed with exit code {job.returncode}")
    output = "".join(lines)

    def figure(label: str) -> str:
        found = re.search(rf"{label}: (.+)", output)
        if found is None:
            sys.exit(f"the run with {processes} process(es) did not print its {label}")
        return found[1].strip()

    return Run(
        processes,
        figure("test accuracy"),
        float(figure("samples/s").split()[0]),
        figure("data paths"),
    )


def main() -> None:
    alone, pair = train(1), train(2)
    print("\nSummary")
    for run in (alone, pair):
        rate = f"{run.samples_per_s:.0f} samples/s"
        print(f"  {run.processes} process(es): test accuracy {run.accuracy}, {rate}")
    print(f"  speed-up: {pair.samples_per_s / alone.samples_per_s:.2f}")
    print(f"  gradients of 2 processes went by {pair.data_paths}")
    for run in (alone, pair):
        if float(run.accuracy.rstrip("%")) / 100 < ACCURACY_TO_REACH:
            sys.exit(f"the run with {run.processes} process(es) stayed below {ACCURACY_TO_REACH:.0%}")


if __name__ == "__main__":
    main()
