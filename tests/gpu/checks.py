"""What is run on a device: a table of checks, which make the rows.

To add a way (``HOROVOD_GPU_OPERATIONS``) add it to `WAYS`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests import fakes
from tests.contract.job import run
from tests.contract.world import ROOT, World, environment, run_cases
from tests.gpu.table import FAILED, NOT_FOUND, PASSED, Row, judged

__all__ = ["CHECKS", "WAYS", "Check", "Machine", "rows_of"]

_LIMIT_S: Final = 900.0
_MARK: Final = "FIGURE "
_SANITIZER: Final = "compute-sanitizer"


@dataclass(frozen=True)
class Machine:
    """``kind``: ``FARANDOLE_TEST_DEVICE``. ``small``: try the programs themselves."""

    kind: str
    devices: int
    small: bool = False


@dataclass(frozen=True)
class Way:
    """How tensors travel between ``ranks`` (0: one for each device), and the name that a path of it has."""

    name: str
    ranks: int
    operations: str
    path: str
    devices: int = 1
    """As many the machine must have."""


WAYS: Final = (
    Way("nccl-1", 1, "NCCL", "nccl"),
    Way("nccl", 0, "NCCL", "nccl", devices=2),
    Way("staged-1", 1, "STAGED", "staged"),
    Way("staged-2", 2, "STAGED", "staged"),
    Way("peer-2", 2, "PEER", "peer"),
)
_BY_NAME: Final = {way.name: way for way in WAYS}


@dataclass(frozen=True)
class Check:
    """``run`` makes the rows of one way."""

    name: str
    run: Callable[[Check, Way, Machine], list[Row]]
    ways: Sequence[str]
    of: str = ""
    """The program of `tests.gpu.rank`, or the table of cases."""


def _world(way: Way, machine: Machine) -> World:
    size = way.ranks or machine.devices
    given: dict[str, str] = {
        "FARANDOLE_TEST_DEVICE": machine.kind,
        "HOROVOD_GPU_OPERATIONS": way.operations,
        "FARANDOLE_GPU_SMALL": "1" if machine.small else "0",
    }
    if machine.kind == "fake":
        given["LD_LIBRARY_PATH"] = fakes.environment()["LD_LIBRARY_PATH"]
        given["FAKE_CUDA_DEVICES"] = str(machine.devices)
    return World(size, variables=tuple(given.items()))


def _ranks(world: World) -> str:
    return f"{world.size} rank{'s' * (world.size > 1)}"


def _program(check: Check, way: Way, machine: Machine) -> list[Row]:
    world = _world(way, machine)
    name = f"{check.name} {way.name}"
    try:
        said = run(world, "tests.gpu.rank", [check.of, "--way", way.path], _LIMIT_S)
    except AssertionError as error:
        return [Row(name, _ranks(world), "the program has failed", result=FAILED, detail=str(error))]
    return figures(name, _ranks(world), said)


def figures(name: str, where: str, said: str) -> list[Row]:
    """The rows in what a rank has printed."""
    lines = [line.removeprefix(_MARK) for line in said.splitlines() if line.startswith(_MARK)]
    rows = [_row(name, where, json.loads(line)) for line in lines]
    return rows or [Row(name, where, "the program has said nothing", result=FAILED, detail=said)]


def _row(name: str, where: str, seen: Mapping[str, Any]) -> Row:
    value, most, least = seen["value"], seen.get("most"), seen.get("least")
    if seen.get("missing"):
        result = NOT_FOUND
    elif "wrong" in seen:
        result = FAILED if seen["wrong"] else PASSED
    elif value is not None and (most is not None or least is not None):
        result = judged(value, most, least)
    else:
        result = PASSED if value is None else ""
    return Row(name, f"{where}: {seen['what']}", seen["figure"], seen.get("goal", ""), result, value)


def _cases(check: Check, way: Way, machine: Machine) -> list[Row]:
    world = _world(way, machine)
    if "arrays" in check.of:
        world = replace(world, variables=(*world.variables, ("FARANDOLE_TEST_DEVICE", "")))
    verdicts = run_cases(check.of, world)
    wrong = [case for case, ranks in verdicts.errors.items() if any(ranks.values())]
    said = [
        f"{case}, rank {rank}\n{text}"
        for case in wrong
        for rank, text in verdicts.errors[case].items()
        if text
    ]
    incomplete = [case for case, ranks in verdicts.errors.items() if len(ranks) < world.size]
    total = len(verdicts.errors)
    bad = len({*wrong, *incomplete})
    return [
        Row(
            f"{check.name} {way.name}",
            f"{_ranks(world)}: {check.of.removeprefix('tests.contract.')}",
            f"{total - bad} of {total} cases",
            result=FAILED if bad or not total else PASSED,
            value=bad,
            detail="\n".join([*said, *(["wrong: " + ", ".join([*wrong, *incomplete])] if bad else [])]),
        )
    ]


def sanitizer(variables: Mapping[str, str] = os.environ) -> str | None:
    """Its command, in the path or with CUDA."""
    homes = [variables[name] for name in ("CUDA_HOME", "CUDA_PATH") if variables.get(name)]
    places = [variables.get("PATH", ""), *(str(Path(home, "bin")) for home in [*homes, "/usr/local/cuda"])]
    return shutil.which(_SANITIZER, path=os.pathsep.join(places))


def _sanitized(check: Check, way: Way, machine: Machine) -> list[Row]:
    """One rank needs no launcher."""
    name, what = f"{check.name} {way.name}", "1 rank: errors in accesses to memory of the device"
    command = sanitizer()
    if command is None:
        place = "looked in PATH, CUDA_HOME, CUDA_PATH and /usr/local/cuda"
        return [Row(name, what, f"{_SANITIZER}: {place}", result=NOT_FOUND)]
    given = environment(0, _world(way, machine), b"", "", ("", -1))
    alone = {name: text for name, text in given.items() if "RENDEZVOUS" not in name and "SECRET" not in name}
    # NCCL asks for kernels of other devices, which CUDA refuses; that is no error of ours.
    calls = ["--report-api-errors", "no"] if way.operations == "NCCL" else []
    words = [command, "--tool", "memcheck", *calls, "--error-exitcode", "9"]
    words += [sys.executable, "-m", "tests.gpu.rank"]
    ended = subprocess.run(
        [*words, check.of, "--way", way.path],
        cwd=ROOT,
        env=alone | {"FARANDOLE_GPU_SMALL": "1"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    said = ended.stdout + ended.stderr
    summary = next(
        (line for line in said.splitlines() if "ERROR SUMMARY" in line), f"exit {ended.returncode}"
    )
    fine = ended.returncode == 0
    return [
        Row(
            name,
            what,
            summary.strip("= "),
            "0 errors",
            PASSED if fine else FAILED,
            detail="" if fine else said,
        )
    ]


CHECKS: Final = (
    Check("torch", _cases, ("nccl-1", "staged-2"), "tests.contract.torch.device_cases"),
    Check("torch", _cases, ("nccl",), "tests.contract.torch.nccl_cases"),
    Check("torch", _cases, ("peer-2",), "tests.contract.torch.peer_cases"),
    # Its arrays are all on the first device.
    Check("arrays", _cases, ("nccl-1", "staged-2", "peer-2"), "tests.contract.arrays.collectives"),
    Check("load", _program, tuple(_BY_NAME), "load"),
    Check("growth", _program, tuple(_BY_NAME), "growth"),
    Check("sanitizer", _sanitized, ("staged-1", "nccl-1"), "copies"),
    Check("copies", _program, ("nccl", "staged-2", "peer-2"), "copies"),
    Check("moves", _program, ("nccl", "staged-2", "peer-2"), "moves"),
    Check("overlap", _program, ("nccl", "staged-2"), "overlap"),
    Check("beside NCCL", _program, ("nccl-1", "nccl"), "beside_nccl"),
    Check("beside DDP", _program, ("nccl", "staged-2"), "beside_ddp"),
    Check("beside memcpy", _program, ("staged-1",), "staged"),
)


def rows_of(check: Check, machine: Machine, ways: Sequence[str] = ()) -> list[Row]:
    """Run a check in each of its ways that the machine has devices for; ``ways``: in these only."""
    rows: list[Row] = []
    for name in check.ways:
        way = _BY_NAME[name]
        if ways and name not in ways:
            continue
        if machine.devices < way.devices:
            why = f"needs {way.devices} devices, here is {machine.devices}"
            rows.append(Row(f"{check.name} {name}", "one rank for each device", why, result=NOT_FOUND))
            continue
        rows += check.run(check, way, machine)
    return rows
