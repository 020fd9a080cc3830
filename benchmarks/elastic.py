"""The time line of a reset: one of three ranks is killed (SIGKILL), on one machine.

    python -m benchmarks.elastic --rounds 7
    python -m benchmarks.elastic --rounds 7 --torchft-python OTHER/bin/python     # one that has torchft

* farandole: `horovodrun --min-np 2`; the two survivors go on;
* farandole-spare: `--spares 1`; a process that was ready takes the place, so there are three ranks again;
* torchrun: `torchrun --max-restarts` with DistributedDataParallel over Gloo; all ranks start again from the
  checkpoint of the last step;
* torchft: three replica groups of one rank, over Gloo; the two survivors go on.

All train the same small network (`elastic_ranks.py`). Times begin at the kill: when the last survivor has
its error (torchft may wait without one), and when the last rank of the new world has finished its first
step. Farandole tells the phases between them itself (`--elastic-events`). Systems take turns; figures are
medians over rounds, in ms, with the lowest and the highest beside.
"""

import argparse
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rows import say

from horovod.bench.measure import wait_for_quiet
from horovod.bench.result import machine

RANKS = 3
WARM_STEPS = 30
LIMIT_S = 120.0
END_S = 20.0

PROGRAM = ("-m", "benchmarks.elastic_ranks")
HOROVODRUN = (sys.executable, "-m", "horovod.runner.launch")


class Ear:
    """Hears what ranks say."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "said")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)

    def heard(self, deadline: float) -> dict[str, Any]:
        """The next message.

        Raises:
            TimeoutError: there is none until `deadline`.
        """
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        message: dict[str, Any] = json.loads(self._socket.recv(4096))
        return message

    def close(self) -> None:
        self._socket.close()


@contextmanager
def running(words: list[str], log: Path, extra: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with children, ended with all of them; it writes to `log`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    with log.open("ab") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=output, start_new_session=True, env=environment
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what has outlived it
            except ProcessLookupError:
                pass


def started(system: str, python: str, folder: Path, ear: Ear, stack: ExitStack) -> None:
    """Start the ranks of `system`; `stack` ends them."""
    log = folder / "log"

    def run(*words: str, **extra: str) -> None:
        stack.enter_context(running(list(words), log, extra))

    def program(name: str) -> tuple[str, ...]:
        return (*PROGRAM, name, ear.path, str(folder))

    events = ("--elastic-events", str(folder / "events"))
    np = ("-np", str(RANKS), "--min-np", str(RANKS - 1), "--max-np", str(RANKS))
    if system == "farandole":
        run(*HOROVODRUN, *np, "-H", f"localhost:{RANKS}", *events, python, *program("farandole"))
    elif system == "farandole-spare":
        host = ("-H", f"localhost:{RANKS + 1}", "--spares", "1")
        run(*HOROVODRUN, *np, *host, *events, python, *program("farandole"))
    elif system == "torchrun":
        job = ("--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "5")
        # Else the ranks of PyTorch 2.13 meet in the store of the last attempt, and connect to who was there.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        run(python, "-m", "torch.distributed.run", *job, *program("torchrun"), **own_store)
    else:
        run(python, *program("lighthouse"))
        address = ear.heard(time.monotonic() + LIMIT_S)["address"]
        for number in range(RANKS):
            run(python, *program("torchft"), REPLICA=f"replica_{number}", TORCHFT_LIGHTHOUSE=address)


def one_reset(system: str, python: str) -> dict[str, float]:
    """Seconds from the kill to ``error`` and to ``step``, and what each phase took.

    Raises:
        RuntimeError: it did not go on in time.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ear = Ear(folder)
        stack.callback(ear.close)
        started(system, python, folder, ear, stack)
        try:
            return {**_watched(system, ear), **_phases(folder)}
        except TimeoutError as error:
            said = (folder / "log").read_text(errors="replace")[-20000:]
            raise RuntimeError(f"{system} did not go on: {said}") from error


def _watched(system: str, ear: Ear) -> dict[str, float]:
    """Kill a rank when all have trained for a while, and see what becomes of the others."""
    ranks_after = RANKS - 1 if system in ("farandole", "torchft") else RANKS
    processes = RANKS + (system == "farandole-spare")
    deadline = time.monotonic() + LIMIT_S
    steps: dict[int, int] = {}
    up: set[int] = set()
    while len(up) < processes or len(steps) < RANKS or min(steps.values()) < WARM_STEPS:
        message = ear.heard(deadline)
        up.add(message["pid"])
        if message["what"] == "step" and message["size"] == RANKS:
            steps[message["pid"]] = steps.get(message["pid"], 0) + 1
    victim = sorted(steps)[1]
    survivors = set(steps) - {victim}
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    errors: dict[int, float] = {}
    resumed: dict[int, float] = {}
    while len(resumed) < ranks_after:
        message = ear.heard(deadline)
        pid, at = message["pid"], message["at"] - killed
        if message["what"] == "error" and pid in survivors:
            errors.setdefault(pid, at)
        elif message["what"] == "step" and (pid in errors or pid not in steps or message["size"] < RANKS):
            resumed.setdefault(pid, at)
    taken = {"step": max(resumed.values())}
    if errors:
        taken["error"] = max(errors.values())
    return taken


def _phases(folder: Path) -> dict[str, float]:
    """Phases of the reset as Farandole tells them; other systems tell nothing."""
    events = folder / "events"
    deadline = time.monotonic() + 5.0
    while events.exists() and time.monotonic() < deadline:
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "resumed":
                return {f"phase {name}": taken_s for name, taken_s in event["took"].items()}
        time.sleep(0.02)  # rank 0 tells it on a thread
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--systems", nargs="+", choices=["farandole", "farandole-spare", "torchrun", "torchft"]
    )
    parser.add_argument("--torchft-python", default=sys.executable, help="an interpreter that has torchft")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet moment")
    parser.add_argument("--json", help="append the results to this file")
    args = parser.parse_args()
    systems = args.systems or ["farandole", "farandole-spare", "torchrun"]
    has_torchft = args.torchft_python != sys.executable or importlib.util.find_spec("torchft") is not None
    if args.systems is None and has_torchft:
        systems.append("torchft")
    print(machine(), flush=True)
    taken: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
    for round_ in range(args.rounds):
        for system in systems[:: -1 if round_ % 2 else 1]:
            wait_for_quiet(limit_cpus=0.5, patience_s=args.patience)
            python = args.torchft_python if system == "torchft" else sys.executable
            taken[system].append(one_reset(system, python))
    for system, rounds in taken.items():
        names = dict.fromkeys(name for figures in rounds for name in figures)
        figures = {
            name: sorted(1000 * each[name] for each in rounds if name in each)
            for name in ("error", "step", *(name for name in names if name.startswith("phase")))
            if name in names
        }
        row = {
            "system": system,
            "rounds": len(rounds),
            **{f"{name} ms": [statistics.median(all_), all_[0], all_[-1]] for name, all_ in figures.items()},
        }
        text = ", ".join(
            f"{name} {statistics.median(all_):.0f} ({all_[0]:.0f} to {all_[-1]:.0f})"
            for name, all_ in figures.items()
        )
        say(row, f"{system}: {text}", args.json)


if __name__ == "__main__":
    main()
