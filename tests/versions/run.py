"""Run the checks of ``checks.py`` with several versions of TensorFlow, all with one built library:

    python -m tests.versions.run .venv .venv-tf216                            # say what failed
    python -m tests.versions.run --write docs/versions.md .venv .venv-tf216   # and write the table

Each argument is a virtual environment. The launcher is this one's; ranks are the environment's Python, which
finds Farandole in ``src``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240.0
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"


@dataclass(frozen=True)
class Outcome:
    """``failures``: check -> what went wrong on the first rank where it did, an empty text if on none."""

    versions: dict[str, str]
    failures: dict[str, str]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), kept.get("PYTHONPATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "KERAS_BACKEND": "tensorflow",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def outcome(venv: Path) -> Outcome:
    """Run the checks on two ranks of that environment.

    Raises:
        RuntimeError: the job ended before any check; its output is the message.
    """
    launch = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
    python = str(venv.absolute() / "bin" / "python")
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        job = subprocess.run(
            [*launch, python, "-m", "tests.versions.checks", folder],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        reports = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    if not reports:
        raise RuntimeError(
            f"{venv}: the job ended with status {job.returncode} before any check:\n{job.stdout}"
        )
    failures: dict[str, str] = {}
    for report in reports:
        for name, error in report["checks"].items():
            failures[name] = failures.get(name) or error
    if len(reports) < 2 or (job.returncode and not any(failures.values())):
        failures["end of the job"] = f"status {job.returncode}\n{job.stdout}"
    return Outcome(reports[0]["versions"], failures)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a table in Markdown, newest version last, with what failed below it."""
    checks = list(dict.fromkeys(name for each in outcomes for name in each.failures))
    titles = [*outcomes[0].versions, *checks]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    notes: list[str] = []
    for each in outcomes:
        cells = list(each.versions.values())
        for name in checks:
            if name not in each.failures:
                cells.append("not run")
            elif not each.failures[name]:
                cells.append("works")
            else:
                cells.append("**fails**")
                reason = each.failures[name].strip().splitlines()[-1]
                notes.append(f"* TensorFlow {each.versions['TensorFlow']}, {name}: `{reason}`")
        lines.append(f"| {' | '.join(cells)} |")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    system = os.uname()
    run = f"Run on {today} on {system.sysname} {system.machine}, two ranks, one built library for all."
    failed = "\n".join(["What failed:", "", *notes]) if notes else "Nothing failed."
    return "\n".join([run, "", *lines, "", failed])


def write(page: Path, text: str) -> None:
    """Put the table between its marks in ``page``."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} has no lines {BEGIN!r} and {END!r} for the table.")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venvs", nargs="+", type=Path, help="virtual environments, oldest version first")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page")
    arguments = parser.parse_args()
    outcomes = []
    for venv in arguments.venvs:
        if not (venv / "bin" / "python").exists():
            raise SystemExit(f"{venv} is no virtual environment; try: make venv-tensorflow")
        outcomes.append(outcome(venv))
        said = outcomes[-1]
        failed = [name for name, error in said.failures.items() if error]
        verdict = f"failed: {', '.join(failed)}" if failed else "all checks passed"
        print(f"TensorFlow {said.versions['TensorFlow']}: {verdict}", flush=True)
        for name in failed:
            print(f"--- {name}\n{said.failures[name]}", flush=True)
    if arguments.write:
        write(arguments.write, table(outcomes))
    if any(error for each in outcomes for error in each.failures.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
