"""Run a table of cases on real ranks: one job per world, all cases in it, a verdict for each case.

``run_cases`` is for tests: it starts the ranks of one world as processes, which all run every case of a
module in the same order, and returns what each rank said about each case. A case is a function without
arguments that is called on every rank and raises if something is wrong; the decorator ``Cases.add`` puts it
into the module's table.

A module whose cases are about another framework than PyTorch says so in ``FRAMEWORK``, the name of a module.

A case that hangs ends its job; the cases behind it run in a new one.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CASE_LIMIT_S = 30.0
MOST_RESTARTS = 12
LOST = 3  # exit code of a rank that could not go on after a case and has said why


@dataclass(frozen=True)
class World:
    """How many ranks, which of them share memory (``HOROVOD_TRANSPORT_GROUPS``), and what moves their bytes.

    ``hosts``: by rank, the letter of its host; ranks share memory with those of the same letter only.
    ``operations``: ``HOROVOD_CPU_OPERATIONS``; ``mpi``: they are started by the ``mpirun`` beside Python.
    ``variables``: more of the environment.
    """

    size: int
    groups: str = "auto"
    hosts: str = ""
    operations: str = "gloo"
    variables: tuple[tuple[str, str], ...] = ()

    @classmethod
    def on_hosts(cls, hosts: str) -> World:
        return cls(len(hosts), "launcher", hosts, variables=(("HOROVOD_NETWORK_PROTECTION", "integrity"),))

    def __str__(self) -> str:
        other = "" if self.operations == "gloo" else f"-{self.operations.rpartition(':')[2]}"
        return self.hosts or f"{self.size}{'' if self.groups == 'auto' else '-tcp'}{other}"


WORLDS = [
    World(1),
    World(2),
    World(2, "single"),
    World(3, "single", variables=(("HOROVOD_NETWORK_PROTECTION", "full"),)),
    World(4),
    World.on_hosts("abab"),
    # These take other ways in the core alone, if any; its tests have every size. Here they are for long runs.
    *(
        [World(3), World(4, "single"), World.on_hosts("aaba")]
        if os.environ.get("FARANDOLE_FULL_MATRIX")
        else []
    ),
]


@dataclass
class Cases:
    """The table of a module, in order of definition."""

    table: dict[str, Callable[[], None]] = field(default_factory=dict)

    def add(self, case: Callable[[], None]) -> Callable[[], None]:
        """A case under the name of its function."""
        return self.add_as(case.__name__, case)

    def add_as(self, name: str, case: Callable[[], None]) -> Callable[[], None]:
        assert name not in self.table, f"two cases named {name}"
        self.table[name] = case
        return case

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)


# -- in the test process
# --------------------------------------------------------------------------------------


@dataclass
class Verdicts:
    """Case -> rank -> what went wrong; an empty text if nothing did."""

    errors: dict[str, dict[int, str]] = field(default_factory=dict)

    def check(self, case: str, world: World) -> None:
        """Fail with what the ranks said about ``case``."""
        said = self.errors.get(case, {})
        wrong = {rank: error for rank, error in said.items() if error}
        missing = sorted(set(range(world.size)) - said.keys())
        report = [f"--- rank {rank}\n{error}" for rank, error in sorted(wrong.items())]
        if missing:
            report.append(f"no verdict from rank {', '.join(map(str, missing))}")
        assert not report, "\n".join(report)


_finished: dict[tuple[str, World], Verdicts] = {}


def run_cases(module: str, world: World) -> Verdicts:
    """Run all cases of ``module`` in ``world``, once per test session."""
    key = (module, world)
    if key not in _finished:
        _finished[key] = _run(module, world)
    return _finished[key]


def _run(module: str, world: World) -> Verdicts:
    names = list(importlib.import_module(module).CASES)
    verdicts = Verdicts()
    begin = 0
    for _ in range(MOST_RESTARTS):
        begin = _run_job(module, world, names, begin, verdicts)
        if begin >= len(names):
            break
    return verdicts


def _run_job(module: str, world: World, names: list[str], begin: int, verdicts: Verdicts) -> int:
    """Run the cases from ``begin`` on in one job; return the first case that it did not come to."""
    from horovod.bootstrap.store.server import StoreServer

    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="contract-") as folder, StoreServer(key, job=job) as store:
        ranks: list[subprocess.Popen[bytes]] = []
        reports = [Path(folder, f"{rank}.jsonl") for rank in range(world.size)]
        logs = [Path(folder, f"{rank}.log") for rank in range(world.size)]
        exchange = Path(folder, "exchange")  # of the backend that needs one
        exchange.mkdir()
        by_mpirun = world.operations == "mpi"
        for rank in range(1 if by_mpirun else world.size):
            report = Path(folder, "{rank}.jsonl") if by_mpirun else reports[rank]
            command = [sys.executable, "-m", "tests.contract.world", module, str(report), str(begin)]
            given = environment(rank, world, key, job, store.address) | {"EXCHANGE_FOLDER": str(exchange)}
            if by_mpirun:
                command = [*mpirun(world.size), *command]
                given = {name: value for name, value in given.items() if name not in _OF_ONE_RANK}
            with logs[rank].open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env=given,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        limit_s = 500.0  # a rank ends by itself when one case takes longer than CASE_LIMIT_S
        try:
            for process in ranks:
                process.wait(limit_s)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        begun = begin - 1
        ranks += ranks[:1] * (world.size - len(ranks))  # all ranks of mpirun end with it
        logs = [log if log.exists() else logs[0] for log in logs]
        for rank, report in enumerate(reports):
            open_case: int | None = None
            for line in report.read_text().splitlines() if report.exists() else []:
                entry = json.loads(line)
                begun = max(begun, entry["case"])
                if "error" in entry:
                    verdicts.errors.setdefault(names[entry["case"]], {})[rank] = entry["error"]
                    open_case = None
                else:
                    open_case = entry["case"]
            if ranks[rank].returncode not in (0, LOST):
                if open_case is None:
                    open_case = min(begun, len(names) - 1) if begun >= begin else begin
                    begun = max(begun, open_case)
                text = f"exit code {ranks[rank].returncode}\n{logs[rank].read_text(errors='replace')[-6000:]}"
                verdicts.errors.setdefault(names[open_case], {})[rank] = text
    return begun + 1


_OF_ONE_RANK = {
    *(f"HOROVOD_{name}_{what}" for name in ("LOCAL", "CROSS") for what in ("RANK", "SIZE")),
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
}


def mpirun(size: int) -> list[str]:
    """The start of a command line for that many ranks."""
    command = str(Path(sys.executable).with_name("mpirun"))
    return [command, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(size)]


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """What does not belong to another job, of ours or of MPI."""
    foreign = ("HOROVOD_", "OMPI_", "PMIX_", "PRTE_")
    return {name: value for name, value in environment.items() if not name.startswith(foreign)} | {
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "src"), *filter(None, [environment.get("PYTHONPATH")])]
        )
    }


def environment(rank: int, world: World, key: bytes, job: str, address: tuple[str, int]) -> dict[str, str]:
    """What a launcher would give to ``rank``."""
    hosts = world.hosts or "a" * world.size
    local_rank = hosts[:rank].count(hosts[rank])
    beside = [host for host in sorted(set(hosts)) if hosts.count(host) > local_rank]
    slot = {
        "RANK": rank,
        "SIZE": world.size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": hosts.count(hosts[rank]),
        "CROSS_RANK": beside.index(hosts[rank]),
        "CROSS_SIZE": len(beside),
    }
    return {
        **without_job(os.environ),
        **{f"HOROVOD_{name}": str(value) for name, value in slot.items()},
        "HOROVOD_HOSTNAME": f"host-{hosts[rank]}" if world.hosts else "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(address[1]),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": world.operations,
        "HOROVOD_SECRET_KEY": key.hex(),
        "HOROVOD_JOB_ID": job,
        "HOROVOD_TRANSPORT_GROUPS": world.groups,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "HOROVOD_TIMELINE": "DYNAMIC",
        # Both ways, whatever machine this is.
        "HOROVOD_OVERLAP_GRADIENTS": "1" if world.size % 2 == 0 else "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **dict(world.variables),
    }


# -- in the ranks
# ---------------------------------------------------------------------------------------------


def use_device() -> None:
    """Make PyTorch's new tensors on the device that ``FARANDOLE_TEST_DEVICE`` names: ``cuda``; ``fake``: one
    that `tests.fakes` stands in for. Without it they are in host memory."""
    named = os.environ.get("FARANDOLE_TEST_DEVICE")
    if not named:
        return
    if named == "fake":
        importlib.import_module("tests.fakes.torch.device").install()
    torch = importlib.import_module("torch")
    device = torch.device("cuda", int(os.environ["HOROVOD_LOCAL_RANK"]) % torch.cuda.device_count())
    if named == "cuda":
        torch.cuda.set_device(device)
    torch.set_default_device(device)


def main() -> None:
    """Run the cases of a module as one rank, reporting every begin and end as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("report", type=Path)
    parser.add_argument("begin", type=int)
    arguments = parser.parse_args()

    use_device()
    table = importlib.import_module(arguments.module)
    hvd = importlib.import_module(getattr(table, "FRAMEWORK", "horovod.torch"))
    cases = list(table.CASES.table.items())
    path = str(arguments.report).format(rank=os.environ.get("OMPI_COMM_WORLD_RANK", ""))
    with open(path, "a") as report:

        def write(**entry: Any) -> None:
            report.write(json.dumps(entry) + "\n")
            report.flush()

        hvd.init()
        for number in range(arguments.begin, len(cases)):
            case = cases[number][1]
            write(case=number)
            faulthandler.dump_traceback_later(CASE_LIMIT_S, exit=True)
            error = ""
            try:
                case()
            except BaseException:
                error = traceback.format_exc()
            # The ranks agree on whether the case left them in a common state. If not, they start a new
            # world; if they cannot even talk about it, this job ends and the next case runs in a new one.
            try:
                everywhere = hvd.allgather_object(not error, name=f"verdict.{number}")
            except Exception:
                write(case=number, error=error or traceback.format_exc())
                os._exit(LOST)
            write(case=number, error=error)
            if not all(everywhere):
                hvd.shutdown()
                hvd.init()
        hvd.shutdown()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
