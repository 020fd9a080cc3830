"""Has a change made us slower? Compares with Gloo and MPI, interleaved, and with what was recorded.

The time of a collective changes with the machine's mood; how many times longer another library takes in the
same seconds changes less. So that ratio is recorded for each kind of processor, with its spread between
launches, in `expected.json`. The check fails where a ratio has fallen below the recorded one by more than the
spreads that were measured, then and now, and where a recorded one was not measured.

    make bench-check                                # compare; five minutes on a quiet machine
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

from horovod.bench.measure import wait_for_quiet
from horovod.bench.options import size_name
from horovod.bench.result import CALM_CPUS, machine

EXPECTED = Path(__file__).with_name("expected.json")
PEERS = ("gloo", "mpi")


@dataclass(frozen=True)
class Launch:
    """What one launch of the tool measures: some sizes for each path.

    Attributes:
        process_set: of these ranks only; empty: of all.
    """

    ranks: int
    operations: str
    sizes: str
    process_set: str = ""

    @property
    def where(self) -> str:
        whole = f"{self.ranks} ranks"
        return f"set of {len(self.process_set.split(','))} of {whole}" if self.process_set else whole


LAUNCHES = (
    Launch(2, "allreduce", "4,4K,16K,256K,1M,4M,64M"),
    Launch(2, "broadcast allgather alltoall reducescatter", "4K,1M,64M"),
    Launch(2, "grouped_allreduce", "1K,4M"),
    Launch(3, "allreduce broadcast allgather", "4K,1M", process_set="0,2"),
    # More ranks than cores, on most machines that check.
    Launch(4, "allreduce", "4,4K,1M"),
    Launch(8, "allreduce", "4"),
    Launch(16, "allreduce", "4"),
)
LAUNCH_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Ratio:
    """How many times longer another library took: the median over launches, and the lowest and highest."""

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


def launch(what: Launch) -> dict[str, float]:
    """One launch of the tool: case to ratio. Disturbed rounds are left out if others are not.

    Raises:
        RuntimeError: it failed; its last words are in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        words = [
            "-np",
            str(what.ranks),
            *what.operations.split(),
            "--sizes",
            what.sizes,
            "--compare",
            ",".join(PEERS),
            "--json",
            str(file),
            *(["--process-set", what.process_set] if what.process_set else []),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "horovod.bench", *words, "--progress", "none"],
            capture_output=True,
            text=True,
            timeout=LAUNCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"horovod.bench {what.operations} failed:\n{done.stderr[-2000:]}")
        results: list[dict[str, Any]] = json.loads(file.read_text())["results"]
    ratios = {}
    for result in results:
        libraries = result["libraries"]
        case = f"{result['operation']} {size_name(result['bytes'])}, {what.where}"
        for peer in PEERS:
            pairs = list(zip(libraries["farandole"]["rounds"], libraries[peer]["rounds"], strict=True))
            calm = [pair for pair in pairs if max(each["others_cpus"] for each in pair) <= CALM_CPUS]
            chosen = [other["median_s"] / own["median_s"] for own, other in calm or pairs]
            ratios[f"{case}, {peer}"] = statistics.median(chosen)
    return ratios


def measured(launches: int, patience_s: float) -> dict[str, Ratio]:
    """Every case, each as often as there are launches."""
    found: dict[str, list[float]] = {}
    for number in range(launches):
        for what in LAUNCHES:
            others = wait_for_quiet(0.2, patience_s)
            print(
                f"round {number + 1} of {launches}: {what.operations}, {what.where} "
                f"(others use {others:.2f} CPUs)",
                flush=True,
            )
            for case, ratio in launch(what).items():
                found.setdefault(case, []).append(ratio)
    return {case: Ratio(statistics.median(all_), min(all_), max(all_)) for case, all_ in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write expected.json instead of comparing")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--patience-s", type=float, default=10.0, help="wait so long for quiet")
    args = parser.parse_args()
    here = machine()["cpu"]
    known: dict[str, Any] = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    if here not in known and not args.record:
        print(
            f"Nothing was recorded on {here}, only on {', '.join(known) or 'no machine'}; ratios of "
            "different machines do not compare. Use --record, on a commit that is fast enough."
        )
        return 2
    now = measured(args.launches, args.patience_s)
    if args.record:
        rounded = {
            case: {name: float(f"{value:.3g}") for name, value in vars(ratio).items()}
            for case, ratio in now.items()
        }
        known[here] = {"commit": commit(), "ratios": rounded}
        EXPECTED.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{len(now)} ratios of {here} written to {EXPECTED.name}")
        return 0
    recorded = known[here]
    slower = 0
    print(
        f"\nTimes as long as ours that the other takes (lowest…highest); recorded at {recorded['commit']}\n"
    )
    for case, ratio in now.items():
        if case not in recorded["ratios"]:
            print(f"{case:38} {_text(ratio):26} not recorded")
            continue
        before = Ratio(**recorded["ratios"][case])
        verdict = "FELL" if fallen(ratio, before) else ""
        slower += bool(verdict)
        print(f"{case:38} {_text(ratio):26} recorded {_text(before):26} {verdict}")
    missing = sorted(recorded["ratios"].keys() - now.keys())
    for case in missing:
        print(f"{case:38} NOT MEASURED")
    print(f"\n{slower or 'No'} ratio{'' if slower == 1 else 's'} fell by more than the measured spread.")
    return 1 if slower or missing else 0


def _text(ratio: Ratio) -> str:
    return f"{ratio.median:.3g} ({ratio.low:.3g}…{ratio.high:.3g})"


if __name__ == "__main__":
    sys.exit(main())
