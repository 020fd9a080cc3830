"""Has a change made us slower? Compares with Gloo, interleaved, and with what was recorded.

The time of a collective changes with the machine's mood; how many times longer Gloo takes in the same seconds
changes less. So that ratio is recorded, with its spread between launches, in `expected.json`. The check fails
where a ratio has fallen below the recorded one by more than the spreads that were measured, then and now.

    make bench-check                                # compare; about a minute on a quiet machine
    make bench-check BENCH_ARGS=--record            # on another machine, or after a change that is faster
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.run import commit

from horovod.bench.machine import machine
from horovod.bench.measure import wait_for_quiet
from horovod.bench.sizes import size_name
from horovod.bench.timing import CALM_CPUS

EXPECTED = Path(__file__).with_name("expected.json")
# What one launch measures: operations and sizes, some for each path.
LAUNCHED = {
    "allreduce": "4,16K,256K,4M,64M",
    "grouped_allreduce allgather broadcast alltoall reducescatter": "1K,4M",
}
LAUNCH_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Ratio:
    """How many times longer Gloo took: the median over launches, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """How far a launch was from the median at most, as a share of it."""
        return max(self.high - self.median, self.median - self.low) / self.median


def fallen(now: Ratio, recorded: Ratio) -> bool:
    """Whether `now` is lower than the spreads of both explain."""
    return now.median < recorded.median * (1 - min(0.9, now.spread + recorded.spread))


def launch(operations: str, sizes: str, ranks: int) -> dict[str, float]:
    """One launch of the tool: case to ratio. Disturbed rounds are left out if others are not.

    Raises:
        RuntimeError: it failed; its last words are in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        words = [
            "-np",
            str(ranks),
            *operations.split(),
            "--sizes",
            sizes,
            "--compare",
            "gloo",
            "--json",
            str(file),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "horovod.bench", *words, "--progress", "none"],
            capture_output=True,
            text=True,
            timeout=LAUNCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"horovod.bench {operations} failed:\n{done.stderr[-2000:]}")
        results: list[dict[str, Any]] = json.loads(file.read_text())["results"]
    ratios = {}
    for result in results:
        libraries = result["libraries"]
        pairs = list(zip(libraries["rueda"]["rounds"], libraries["gloo"]["rounds"], strict=True))
        calm = [pair for pair in pairs if max(each["others_cpus"] for each in pair) <= CALM_CPUS]
        chosen = [other["median_s"] / own["median_s"] for own, other in calm or pairs]
        ratios[f"{result['operation']} {size_name(result['bytes'])}"] = statistics.median(chosen)
    return ratios


def measured(launches: int, ranks: int, patience_s: float) -> dict[str, Ratio]:
    """Every case, each as often as there are launches."""
    found: dict[str, list[float]] = {}
    for number in range(launches):
        for operations, sizes in LAUNCHED.items():
            others = wait_for_quiet(0.2, patience_s)
            print(
                f"launch {number + 1} of {launches}: {operations} (others use {others:.2f} CPUs)", flush=True
            )
            for case, ratio in launch(operations, sizes, ranks).items():
                found.setdefault(case, []).append(ratio)
    return {case: Ratio(statistics.median(all_), min(all_), max(all_)) for case, all_ in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write expected.json instead of comparing")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--patience-s", type=float, default=10.0, help="wait so long for quiet")
    args = parser.parse_args()
    here = {"cpu": machine()["cpu"], "ranks": str(args.ranks)}
    recorded: dict[str, Any] = {}
    if not args.record:
        if not EXPECTED.exists():
            print(f"There is no {EXPECTED.name}: record it with --record, on a commit that is fast enough.")
            return 2
        recorded = json.loads(EXPECTED.read_text())
        there = {name: recorded[name] for name in here}
        if there != here:
            print(f"Ratios were recorded on {there}, and this is {here}: they do not compare. Use --record.")
            return 2
    now = measured(args.launches, args.ranks, args.patience_s)
    if args.record:
        rounded = {
            case: {name: float(f"{value:.3g}") for name, value in vars(ratio).items()}
            for case, ratio in now.items()
        }
        text = {"commit": commit(), **here, "ratios": rounded}
        EXPECTED.write_text(json.dumps(text, indent=1) + "\n")
        print(f"{len(now)} ratios written to {EXPECTED.name}")
        return 0
    slower = 0
    print(f"\nTimes as long as ours that Gloo takes (lowest…highest); recorded at {recorded['commit']}\n")
    for case, ratio in now.items():
        if case not in recorded["ratios"]:
            print(f"{case:28} {_text(ratio):26} not recorded")
            continue
        before = Ratio(**recorded["ratios"][case])
        verdict = "FELL" if fallen(ratio, before) else ""
        slower += bool(verdict)
        print(f"{case:28} {_text(ratio):26} recorded {_text(before):26} {verdict}")
    print(f"\n{slower or 'No'} ratio{'' if slower == 1 else 's'} fell by more than the measured spread.")
    return 1 if slower else 0


def _text(ratio: Ratio) -> str:
    return f"{ratio.median:.3g} ({ratio.low:.3g}…{ratio.high:.3g})"


if __name__ == "__main__":
    sys.exit(main())
