"""Compare Farandole with PyTorch's Gloo and with Open MPI, side by side in one run: this is `make bench`.

Peers run one after another in rounds, so that a machine that changes under the run changes for all of
them. Before each launch the driver waits for a quiet moment. A figure is the median over rounds.

    python -m benchmarks.run --ranks 2 --rounds 3
"""

import argparse
import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import peers, report

from horovod.bench.measure import wait_for_quiet
from horovod.bench.mpi_job import find_mpirun, mpirun_command, mpirun_environment
from horovod.bench.result import machine, versions

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("collectives", "gradients", "training", "startup")
LAUNCH_TIMEOUT_S = 180.0


def launch(peer: str, program: str, ranks: int, lines: Path) -> None:
    """Run `program` with `ranks` processes of `peer` and append its results to `lines`.

    Raises:
        RuntimeError: a process failed; its last words are in the message.
    """
    tools = Path(sys.executable).parent
    work = [sys.executable, "-m", f"benchmarks.{program}", "--peer", peer, "--json", str(lines)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if peer == "farandole":
        commands = [[str(tools / "horovodrun"), "-np", str(ranks), *work]]
    elif peer == "openmpi":
        commands = [[*mpirun_command(find_mpirun() or "mpirun", ranks), *work]]
        environment = mpirun_environment(environment)
    else:
        commands = [work] * ranks
        with socket.create_server(("127.0.0.1", 0)) as free:
            environment |= {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(free.getsockname()[1])}
            environment |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryFile("w+") as said:
        processes = [
            subprocess.Popen(
                command,
                env=environment | ({"RANK": str(rank)} if len(commands) > 1 else {}),
                cwd=ROOT,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            for rank, command in enumerate(commands)
        ]
        deadline = time.monotonic() + LAUNCH_TIMEOUT_S
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            said.seek(0)
            words = "".join(said.readlines()[-20:])
            raise RuntimeError(f"{peer}: benchmarks.{program} ended with {codes}:\n{words}")


def commit() -> str:
    """Short hash of the checked-out commit, with + if files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "core", "src", "benchmarks")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=peers.NAMES, default=list(peers.NAMES))
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--quiet-cpus", type=float, default=0.2, help="others may use this many CPUs")
    parser.add_argument("--patience-s", type=float, default=10.0, help="wait so long for quiet")
    parser.add_argument("--budget-s", type=float, default=540.0, help="start no further round after this")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<date>-<commit>")
    args = parser.parse_args()

    started = time.monotonic()
    today, revision = datetime.date.today().isoformat(), commit()
    out: Path = args.out or ROOT / "benchmarks" / "results" / f"{today}-{revision}"
    rows: dict[str, list[dict[str, Any]]] = {program: [] for program in args.programs}
    rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        while rounds < args.rounds and (
            rounds == 0 or (time.monotonic() - started) * (rounds + 1) / rounds < args.budget_s
        ):
            for program in args.programs:
                # Every second round backwards: nobody is always first.
                for peer in args.peers[:: -1 if rounds % 2 else 1]:
                    if peer == "limit" and program in ("training", "startup"):
                        continue
                    others = wait_for_quiet(args.quiet_cpus, args.patience_s)
                    print(
                        f"round {rounds + 1}: {program} with {peer} (others use {others:.2f} CPUs)",
                        flush=True,
                    )
                    lines = Path(folder) / f"{program}.{peer}.{rounds}"
                    launch(peer, program, args.ranks, lines)
                    rows[program] += [
                        json.loads(line) | {"round": rounds} for line in lines.read_text().splitlines()
                    ]
            rounds += 1
    results = {
        "date": today,
        "commit": revision,
        "ranks": args.ranks,
        "rounds": rounds,
        "machine": machine() | versions(("torch", "mpi4py", "openmpi")),
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    report.write(results, out)
    print((out / "report.md").read_text())
    print(f"{time.monotonic() - started:.0f} s; written to {out}")


if __name__ == "__main__":
    main()
