"""Runs the C++ fuzzers of a build folder, each for the same time, some beside each other.

What they learn stays in ``corpus/`` of that folder, so the next run goes on from there. A finding is kept in
``findings/``; once the code is mended it belongs into ``fuzz/cases/TARGET/``, where the tests take it up.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).with_name("cases")
LIMIT_MIB = 2048
MOST_BYTES = 4096
GRACE_S = 60


@dataclass(frozen=True)
class Outcome:
    """One fuzzer's run. ``finding``: what it printed if it found something."""

    target: str
    runs: int
    features: int
    finding: str


def fuzz(program: Path, folder: Path, seconds: int) -> Outcome:
    target = program.name.removeprefix("fuzz_")
    seeds, corpus, findings = (folder / name / target for name in ("seeds", "corpus", "findings"))
    for each in (seeds, corpus, findings):
        each.mkdir(parents=True, exist_ok=True)
    subprocess.run([program, "--seeds", seeds], check=True, timeout=GRACE_S)
    known = [path for path in (seeds, CASES / target) if path.is_dir()]
    done = subprocess.run(
        [
            program,
            corpus,
            *known,
            f"-max_total_time={seconds}",
            f"-max_len={MOST_BYTES}",
            f"-rss_limit_mb={LIMIT_MIB}",
            "-timeout=20",
            "-print_final_stats=1",
            "-verbosity=1",
            f"-artifact_prefix={findings}/",
        ],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"},
        timeout=seconds + 10 * GRACE_S,
        check=False,
    )
    runs = re.search(r"number_of_executed_units: *(\d+)", done.stderr)
    features = re.findall(r"\bft: (\d+)", done.stderr)
    return Outcome(
        target,
        int(runs[1]) if runs else 0,
        int(features[-1]) if features else 0,
        "" if done.returncode == 0 else done.stderr[-6000:],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the fuzzers were built")
    parser.add_argument("--seconds", type=int, default=3, help="for each fuzzer")
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers at a time")
    options = parser.parse_args()
    programs = sorted(path for path in options.folder.glob("fuzz_*") if os.access(path, os.X_OK))
    if not programs:
        sys.exit(f"there are no fuzzers in {options.folder}")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda program: fuzz(program, options.folder, options.seconds), programs))
    failed = False
    for outcome in outcomes:
        if outcome.finding:
            failed = True
            print(f"fuzz: {outcome.target}: FOUND SOMETHING\n{outcome.finding}")
        else:
            print(f"fuzz: {outcome.target}: {outcome.runs} inputs, {outcome.features} features")
            failed = failed or outcome.runs == 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
