"""Mutants: changes of the engine and the backends, and the tests that notice them.

    python -m tests.mutation.run                          # every mutant: a night
    python -m tests.mutation.run --sample 300 --seed 7    # a random sample
    python -m tests.mutation.run --files shm/small stall  # those of some files: only these are compiled anew
    python -m tests.mutation.run --keep --python tests/contract/test_killed_rank.py

One build carries all mutants (``mutants.h``); an environment variable chooses one when a test program starts.
First each C++ test case runs by itself and says which mutants make a difference where they are; each mutant
then meets only those cases, the fastest first, until one fails. What survives meets the Python tests that are
named, with a native module of the same build, if it makes a difference in them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.rewriting import Mutant
from tests.mutation.suite import (
    DIFFERED,
    REACHED,
    Case,
    Run,
    cases_of,
    end_marked,
    limit_damage,
    run,
    run_command,
)
from tests.mutation.tree import ROOT, compile_tree, programs_of, write_tree

STATES = ("killed", "survived", "no difference", "not reached")
FIRST_CASES = 12


@dataclass(frozen=True)
class Coverage:
    seconds: dict[Case, float]
    reached: set[int]
    differed: dict[int, list[Case]]
    """Mutant -> the cases in which it makes a difference where it is, fastest first."""


def watch(mutants: Sequence[Mutant], start: Callable[[Mapping[str, str]], Run]) -> tuple[Run, bytes]:
    """A run, and by number of the mutant whether it was reached, and would have made a difference."""
    size = max(m.number for m in mutants) + 8
    with tempfile.NamedTemporaryFile(prefix="mutants-seen-") as seen:
        seen.truncate(size)
        done = start({"FARANDOLE_MUTANTS_SEEN": seen.name})
        with mmap.mmap(seen.fileno(), size) as view:
            return done, view[:]


def record_coverage(programs: Path, mutants: Sequence[Mutant], jobs: int) -> Coverage:
    """Run each case by itself, without a mutant.

    Raises:
        SystemExit: one failed, as it is.
    """
    cases = cases_of(programs)

    def one(case: Case) -> tuple[Case, float, bytes]:
        done, view = watch(mutants, lambda environment: run(programs, [case], environment, 300))
        if done.verdict != "passed":
            print(f"{case} {done.verdict} without any mutant; it is left out", file=sys.stderr)
            view = b""
        return case, done.seconds, view

    seconds: dict[Case, float] = {}
    reached: set[int] = set()
    differed: dict[int, list[Case]] = defaultdict(list)
    numbers = [m.number for m in mutants]
    with ThreadPoolExecutor(jobs) as pool:
        for case, took, view in sorted(pool.map(one, cases), key=lambda result: result[1]):
            seconds[case] = took
            for number in numbers if view else ():
                if view[number] & REACHED:
                    reached.add(number)
                if view[number] & DIFFERED:
                    differed[number].append(case)
    return Coverage(seconds, reached, dict(differed))


def save_coverage(coverage: Coverage, path: Path) -> None:
    cases = list(coverage.seconds)
    at = {case: i for i, case in enumerate(cases)}
    stored = {
        "cases": [[c.program, c.name, coverage.seconds[c]] for c in cases],
        "reached": sorted(coverage.reached),
        "differed": {number: [at[c] for c in those] for number, those in coverage.differed.items()},
    }
    path.write_text(json.dumps(stored))


def load_coverage(path: Path) -> Coverage:
    stored = json.loads(path.read_text())
    cases = [Case(program, name) for program, name, _ in stored["cases"]]
    return Coverage(
        {case: seconds for case, (_, _, seconds) in zip(cases, stored["cases"], strict=True)},
        set(stored["reached"]),
        {int(number): [cases[i] for i in those] for number, those in stored["differed"].items()},
    )


def batches(cases: Sequence[Case], seconds: dict[Case, float], most_s: float) -> list[list[Case]]:
    """Cases of one program run in one process: first the fastest few of all, then the rest by program."""
    chosen: list[Case] = []
    total = 0.0
    for case in cases:
        total += seconds[case]
        if chosen and total > most_s:
            break
        chosen.append(case)
    result: list[list[Case]] = []
    for part in (chosen[:FIRST_CASES], chosen[FIRST_CASES:]):
        by_program: dict[str, list[Case]] = defaultdict(list)
        for case in part:
            by_program[case.program].append(case)
        result += sorted(by_program.values(), key=lambda those: sum(seconds[c] for c in those))
    return result


def judge(programs: Path, mutant: Mutant, coverage: Coverage, most_s: float) -> tuple[str, str]:
    """The state of a mutant and what noticed it."""
    if mutant.number not in coverage.reached:
        return "not reached", ""
    if mutant.number not in coverage.differed:
        return "no difference", ""
    for batch in batches(coverage.differed[mutant.number], coverage.seconds, most_s):
        limit_s = 10 + 6 * sum(coverage.seconds[case] for case in batch)
        done = run(programs, batch, {"FARANDOLE_MUTANT": str(mutant.number)}, limit_s)
        if done.verdict != "passed":
            return "killed", f"{batch[0].program} {done.verdict}"
    return "survived", ""


@dataclass(frozen=True)
class PythonTests:
    """Tests of Python that run with the native module of the mutants' build."""

    arguments: Sequence[str]
    package: Path

    def run(self, environment: Mapping[str, str], limit_s: float) -> Run:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.arguments]
        mark = {"FARANDOLE_MUTANTS_RUN": secrets.token_hex(8)}
        package = {"PYTHONPATH": str(self.package)}
        done = run_command(command, ROOT, package | mark | dict(environment), limit_s)
        end_marked(mark)  # ranks may have sessions of their own
        return done

    def record(self, mutants: Sequence[Mutant]) -> tuple[float, set[int]]:
        """The time that they take without a mutant, and the mutants that make a difference in them.

        Raises:
            SystemExit: one fails as it is, or none uses the module with the mutants.
        """
        done, view = watch(mutants, lambda environment: self.run(environment, 3600))
        if done.verdict != "passed":
            raise SystemExit(f"{' '.join(self.arguments)} {done.verdict} without any mutant")
        if not any(view):
            raise SystemExit(f"{' '.join(self.arguments)} reach none of the mutants")
        return done.seconds, {m.number for m in mutants if view[m.number] & DIFFERED}


def table(outcomes: Sequence[tuple[Mutant, str]]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, state in outcomes:
        counts[mutant.file][state] += 1
        counts["all"][state] += 1
    width = max(len(file) for file in counts)
    lines = [f"{'file':{width}}  " + "  ".join(f"{state:>13}" for state in STATES)]
    for file in sorted(counts, key=lambda name: (name == "all", name)):
        lines.append(f"{file:{width}}  " + "  ".join(f"{counts[file][state]:13}" for state in STATES))
    return "\n".join(lines)


def revision() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--sample", type=int, help="how many mutants, chosen at random (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--files", nargs="*", default=[], help="only of files with one of these in their names"
    )
    parser.add_argument(
        "--targets", nargs="*", default=[], help="compile only these test programs (and _core)"
    )
    parser.add_argument(
        "--python", nargs="*", default=[], help="arguments of pytest: what survives meets these tests, too"
    )
    parser.add_argument("--mutants", nargs="*", type=int, default=[], help="only these numbers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seconds", type=float, default=60.0, help="most that one mutant's tests may take")
    parser.add_argument(
        "--keep", action="store_true", help="use the programs and the coverage that are there"
    )
    parser.add_argument("--out", type=Path, help="write each mutant's state there, as JSON lines")
    given = parser.parse_args()
    limit_damage()
    build: Path = given.build.absolute()
    if given.keep:
        stored = json.loads((build / "mutants.json").read_text())
        mutants = [Mutant(**one) for one in stored["mutants"]]
        skipped: dict[str, int] = stored["skipped"]
        programs = programs_of(build)
        coverage = load_coverage(build / "coverage.json")
    else:
        mutants, skipped = write_tree(build, given.jobs, given.files)
        programs = compile_tree(build, given.jobs, given.targets)
        coverage = record_coverage(programs, mutants, given.jobs)
        save_coverage(coverage, build / "coverage.json")
    print(
        f"{revision()}: {len(mutants)} mutants; {sum(skipped.values())} constants are the compiler's and stay"
    )
    chosen = [m for m in mutants if not given.files or any(part in m.file for part in given.files)]
    if given.mutants:
        chosen = [m for m in chosen if m.number in given.mutants]
    if given.sample is not None and given.sample < len(chosen):
        chosen = sorted(random.Random(given.seed).sample(chosen, given.sample), key=lambda m: m.number)
    python = PythonTests(given.python, build / "source" / "src") if given.python else None
    python_s, in_python = python.record(mutants) if python is not None else (0.0, set())

    def one(mutant: Mutant) -> tuple[str, str]:
        state, by = judge(programs, mutant, coverage, given.seconds)
        if python is not None and state != "killed" and mutant.number in in_python:
            verdict = python.run({"FARANDOLE_MUTANT": str(mutant.number)}, 60 + 6 * python_s).verdict
            if verdict != "passed":
                return "killed", f"{python.arguments[0]} {verdict}"
            state = "survived"
        return state, by

    outcomes: list[tuple[Mutant, str]] = []
    began = time.monotonic()
    out = given.out.open("a") if given.out else None
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, (state, by) in zip(chosen, pool.map(one, chosen), strict=True):
            outcomes.append((mutant, state))
            if out is not None:
                out.write(json.dumps({**mutant.as_json(), "state": state, "by": by}) + "\n")
                out.flush()
            if state != "killed":
                print(f"{state}: {mutant.number} {mutant}", flush=True)
    print(table(outcomes))
    print(f"{len(outcomes)} mutants in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
