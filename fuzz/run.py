"""Runs the C++ fuzzers of a build folder, each for the same time, some beside each other.

They begin with the seeds and with ``fuzz/corpus/TARGET/``. What they learn stays in ``corpus/`` of that
folder, so the next run goes on from there; ``--merge`` takes what is new and small of it into
``fuzz/corpus/``. A finding is kept in ``findings/``; once the code is mended it belongs into
``fuzz/corpus/TARGET/``, under a name that says what it was. The tests take all of it up.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
LIMIT_MIB = 2048
MOST_BYTES = 4096
MOST_MERGED_BYTES = 400
"""Of an input in the repository, and what a target may have there is so much more:"""
MOST_TARGET_BYTES = 48 << 10
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
    known = [path for path in (seeds, CORPUS / target) if path.is_dir()]
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


def merge(program: Path, folder: Path) -> int:
    """Take what adds to the coverage of the repository's corpus into it. Returns how many files came."""
    target = program.name.removeprefix("fuzz_")
    kept = CORPUS / target
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        grown, small = Path(scratch, "grown"), Path(scratch, "small")
        shutil.copytree(kept, grown)
        small.mkdir()
        for source in (folder / "seeds" / target, folder / "corpus" / target):
            for path in source.glob("*"):
                if path.stat().st_size <= MOST_MERGED_BYTES:
                    shutil.copy(path, small / hashlib.sha1(path.read_bytes()).hexdigest())
        options = ["-merge=1", f"-max_len={MOST_MERGED_BYTES}", f"-rss_limit_mb={LIMIT_MIB}"]
        subprocess.run([program, *options, grown, small], check=True, capture_output=True)
        left = MOST_TARGET_BYTES - sum(path.stat().st_size for path in kept.iterdir())
        came = 0
        for path in sorted(grown.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
            size = path.stat().st_size
            if size <= left and not (kept / path.name).exists():
                shutil.copy(path, kept / path.name)
                left -= size
                came += 1
    return came


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the fuzzers were built")
    parser.add_argument("--seconds", type=int, default=3, help="for each fuzzer")
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers at a time")
    parser.add_argument("--merge", action="store_true", help="only take what was learned into fuzz/corpus")
    options = parser.parse_args()
    programs = sorted(path for path in options.folder.glob("fuzz_*") if os.access(path, os.X_OK))
    if not programs:
        sys.exit(f"there are no fuzzers in {options.folder}")
    if options.merge:
        for program in programs:
            print(f"fuzz: {program.name.removeprefix('fuzz_')}: {merge(program, options.folder)} new files")
        return 0
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
