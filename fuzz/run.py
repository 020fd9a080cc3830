"""Runs the C++ fuzzers of a build folder, each for the same time, some beside each other.

They begin with the seeds and with inputs of ``fuzz/corpus/TARGET.zip``. What they learn stays in
``corpus/`` of that folder, so the next run goes on from there; ``--merge`` takes what is new and small of it
into the archive. A finding is kept in ``findings/``; once the code is mended it belongs into the archive,
under a name that says what it was (``--keep TARGET FILE``). The tests take all of it up.
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
import zipfile
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
    kept = folder / "kept" / target
    shutil.rmtree(kept, ignore_errors=True)
    unpack(target, kept)
    done = subprocess.run(
        [
            program,
            corpus,
            seeds,
            kept,
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


def inputs_of(target: str) -> dict[str, bytes]:
    """Inputs in the repository's archive of a target, by name."""
    if not (CORPUS / f"{target}.zip").exists():
        return {}
    with zipfile.ZipFile(CORPUS / f"{target}.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def unpack(target: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, data in inputs_of(target).items():
        (folder / name).write_bytes(data)


def keep(target: str, inputs: dict[str, bytes]) -> None:
    """Write the repository's archive of a target. The same inputs make the same bytes."""
    with zipfile.ZipFile(CORPUS / f"{target}.zip", "w") as archive:
        for name, data in sorted(inputs.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def merge(program: Path, folder: Path) -> int:
    """Take what adds to the coverage of the repository's corpus into it. Returns how many inputs came."""
    target = program.name.removeprefix("fuzz_")
    kept = inputs_of(target)
    before = len(kept)
    with tempfile.TemporaryDirectory() as scratch:
        grown, small = Path(scratch, "grown"), Path(scratch, "small")
        unpack(target, grown)
        small.mkdir()
        for source in (folder / "seeds" / target, folder / "corpus" / target):
            for path in source.glob("*"):
                if path.stat().st_size <= MOST_MERGED_BYTES:
                    shutil.copy(path, small / hashlib.sha1(path.read_bytes()).hexdigest())
        options = ["-merge=1", f"-max_len={MOST_MERGED_BYTES}", f"-rss_limit_mb={LIMIT_MIB}"]
        subprocess.run([program, *options, grown, small], check=True, capture_output=True)
        left = MOST_TARGET_BYTES - sum(map(len, kept.values()))
        for path in sorted(grown.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
            size = path.stat().st_size
            if size <= left and path.name not in kept:
                kept[path.name] = path.read_bytes()
                left -= size
    if len(kept) > before:
        keep(target, kept)
    return len(kept) - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("build/asan"), help="where the fuzzers were built"
    )
    parser.add_argument("--seconds", type=int, default=3, help="for each fuzzer")
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers at a time")
    parser.add_argument("--merge", action="store_true", help="only take what was learned into fuzz/corpus")
    parser.add_argument(
        "--keep",
        nargs=2,
        metavar=("TARGET", "FILE"),
        help="only take a file into fuzz/corpus, under its name",
    )
    options = parser.parse_args()
    if options.keep:
        target, file = options.keep[0], Path(options.keep[1])
        keep(target, {**inputs_of(target), file.name: file.read_bytes()})
        return 0
    programs = sorted(
        path for path in options.folder.glob("fuzz_*") if path.is_file() and os.access(path, os.X_OK)
    )
    if not programs:
        sys.exit(f"there are no fuzzers in {options.folder}")
    if options.merge:
        for program in programs:
            print(f"fuzz: {program.name.removeprefix('fuzz_')}: {merge(program, options.folder)} new inputs")
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
