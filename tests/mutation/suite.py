"""The C++ tests, run with a mutant or to see which mutants they reach."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REACHED, DIFFERED = 1, 2  # of mutants.h


@dataclass(frozen=True)
class Case:
    program: str
    name: str

    def __str__(self) -> str:
        return f"{self.program}.{self.name}"


@dataclass(frozen=True)
class Run:
    verdict: str
    """``passed``, ``failed``, ``hung`` or ``died``."""
    seconds: float


def limit_damage() -> None:
    """For this process and those that it starts: a mutant may ask for any amount of anything."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 30, 64 << 30))


def cases_of(programs: Path) -> list[Case]:
    cases: list[Case] = []
    for program in sorted(programs.glob("test_*")):
        if not program.is_file() or not os.access(program, os.X_OK):
            continue
        listed = subprocess.run(
            [program, "--gtest_list_tests"], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        suite = ""
        for line in listed.splitlines():
            name = line.split("#")[0].rstrip()
            if name.endswith(".") and not name.startswith(" "):
                suite = name
            elif name.startswith("  "):
                cases.append(Case(program.name, suite + name.strip()))
    return cases


def run(programs: Path, cases: Sequence[Case], environment: Mapping[str, str], limit_s: float) -> Run:
    """Run cases of one program until the first that fails; the time limit is for all of them."""
    program = programs / cases[0].program
    command = [str(program), "--gtest_brief=1", "--gtest_filter=" + ":".join(case.name for case in cases)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        fast = {"GTEST_FAIL_FAST": "1", "TMPDIR": folder}
        return run_command(command, Path(folder), fast | dict(environment), limit_s)


def end_marked(mark: Mapping[str, str]) -> None:
    """End every process that has this in its environment."""
    wanted = {f"{name}={value}".encode() for name, value in mark.items()}
    found = True
    while found:  # one may have started another meanwhile
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True
            except OSError:
                pass  # it has ended, or is not ours


def run_command(command: Sequence[str], folder: Path, environment: Mapping[str, str], limit_s: float) -> Run:
    """Run it in a session of its own, of which nothing is left at the end."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
        verdict = "passed" if code == 0 else "failed" if code == 1 else "died"
    except subprocess.TimeoutExpired:
        verdict = "hung"
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what it forked, too
    except ProcessLookupError:
        pass  # nobody is left
    process.wait()
    return Run(verdict, time.monotonic() - began)
