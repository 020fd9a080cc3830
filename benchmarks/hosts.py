"""Compare Farandole, PyTorch's Gloo, Open MPI and the bare network on several simulated hosts, interleaved.

    python -m benchmarks.hosts --hosts 2 --ranks-per-host 1 --rate 1gbit
    python -m benchmarks.hosts --hosts 2 --ranks-per-host 2 --rounds 5
    python -m benchmarks.hosts --peers farandole farandole-off farandole-full --sizes 4 4096 1048576 67108864

The hosts are network namespaces of this machine (`tests/hosts/`), with their own links; needs root. All of
them share this machine's cores, so an unlimited link measures the CPU cost of the network more than anything
else. Peers run one after another in rounds, every second round backwards; a figure is the median over rounds.
"""

import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.report import cell
from benchmarks.run import ROOT, commit
from tests.hosts.simulated import SimulatedHosts, why_not

from horovod.bench.measure import wait_for_quiet
from horovod.bench.mpi_job import find_mpirun, mpirun_environment
from horovod.bench.options import size_name
from horovod.bench.result import machine, versions

SIZES = (4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
PROTECTIONS = {"farandole-off": "off", "farandole-full": "full"}
"""Peers that are Farandole itself with this `HOROVOD_NETWORK_PROTECTION`."""
TITLES = {
    "farandole": "farandole",
    **{peer: f"farandole, {level}" for peer, level in PROTECTIONS.items()},
    "gloo": "PyTorch Gloo",
    "openmpi": "Open MPI",
    "wire": "bare TCP",
}
LAUNCH_TIMEOUT_S = 300.0
_PORT = 29531


def launch(peer: str, hosts: SimulatedHosts, ranks_per_host: int, arguments: list[str], lines: Path) -> None:
    """Run `benchmarks.collectives` with `peer` on all hosts and append its results to `lines`.

    Raises:
        RuntimeError: a process failed; its last words are in the message.
    """
    size = len(hosts.names) * ranks_per_host
    work = [
        sys.executable, "-m", "benchmarks.collectives",
        "--peer", "farandole" if peer in PROTECTIONS else peer, "--json", str(lines), *arguments,
    ]  # fmt: skip
    common = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    common |= {"HOROVOD_" + name: value for name, value in _settings().items()}
    if peer in PROTECTIONS:
        common["HOROVOD_NETWORK_PROTECTION"] = PROTECTIONS[peer]
    if peer == "openmpi":
        # It cannot know that the hosts share cores; its default, not to yield, takes seconds per call then.
        yields = "1" if size > len(os.sched_getaffinity(0)) else "0"
        placed = ",".join(f"{name}:{ranks_per_host}" for name in hosts.names)
        command = [
            find_mpirun() or "mpirun", "--host", placed, "-n", str(size), "--bind-to", "none",
            "--mca", "btl_tcp_if_include", "eth0", "-x", "OMP_NUM_THREADS", "-x", "PYTHONPATH",
            "--mca", "mpi_yield_when_idle", yields, *work,
        ]  # fmt: skip
        started = [(0, command, mpirun_environment(common) | {"PYTHONPATH": _python_path()})]
    else:
        # As torchrun tells them: both libraries understand that.
        meet = {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "GROUP_WORLD_SIZE": str(len(hosts.names)),
            "MASTER_ADDR": hosts.addresses[0],
            "MASTER_PORT": str(_PORT),
            "TORCHELASTIC_RUN_ID": f"bench-{time.monotonic_ns()}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "PYTHONPATH": _python_path(),
        }
        started = []
        for rank in range(size):
            place = {"RANK": rank, "LOCAL_RANK": rank % ranks_per_host, "GROUP_RANK": rank // ranks_per_host}
            own = {name: str(value) for name, value in place.items()}
            started.append((rank // ranks_per_host, work, common | meet | own))
    with tempfile.TemporaryFile("w+") as said:
        processes = [
            subprocess.Popen(
                hosts.command(host, command),
                env={**environment, **hosts.environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for host, command, environment in started
        ]
        deadline = time.monotonic() + LAUNCH_TIMEOUT_S
        codes: list[int] = []
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        finally:
            if not codes or any(codes):
                for process in processes:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
        if any(codes):
            said.seek(0)
            words = "".join(said.readlines()[-20:])
            raise RuntimeError(f"{peer}: benchmarks.collectives ended with {codes}:\n{words}")


def _settings() -> dict[str, str]:
    """Settings of Farandole that were given to this program, without their prefix."""
    prefix = "HOROVOD_"
    return {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}


def _python_path() -> str:
    return os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)]).strip(os.pathsep)


def markdown(results: dict[str, Any]) -> str:
    """The report: one table per operation; Farandole beside each peer."""
    rows: list[dict[str, Any]] = results["rows"]
    names = [peer for peer in TITLES if any(row["peer"] == peer for row in rows)]
    text = [
        f"# {results['date']}, commit {results['commit']}: {results['hosts']} simulated hosts × "
        f"{results['ranks_per_host']} ranks, links: {results['rate']}",
        "",
        "; ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".",
        "",
        f"Peers ran interleaved in {results['rounds']} rounds on one machine; a cell is the median over",
        "rounds (lowest…highest) of the median call, in µs. Last columns: time of the other / of farandole.",
        "",
    ]
    for operation in dict.fromkeys(row["operation"] for row in rows):
        here = [row for row in rows if row["operation"] == operation]
        others = [peer for peer in names if peer != "farandole" and any(row["peer"] == peer for row in here)]
        text += [f"## {operation}", ""]
        text.append(
            "| | " + " | ".join(TITLES[peer] for peer in ["farandole", *others])
            + " | " + " | ".join(f"{TITLES[peer]} / farandole" for peer in others) + " | path |"
        )  # fmt: skip
        text.append("|---|" + "---:|" * (1 + 2 * len(others)) + "---|")
        for size in sorted({row["bytes"] for row in here}):
            of = {
                peer: [row for row in here if row["peer"] == peer and row["bytes"] == size] for peer in names
            }
            own = [row["median_s"] for row in of["farandole"]]
            ratios = [
                f"{statistics.median(row['median_s'] for row in of[peer]) / statistics.median(own):.2f}"
                if of[peer] and own
                else "–"
                for peer in others
            ]
            cells = [cell(of[peer], "median_s", 1e6) for peer in ["farandole", *others]]
            path = of["farandole"][0]["path"] if of["farandole"] else ""
            text.append(f"| {size_name(size)} | " + " | ".join([*cells, *ratios, path]) + " |")
        text.append("")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", default="none", help="of every link: 1gbit, 10gbit; none: unlimited")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=list(TITLES), default=list(peers.BETWEEN_HOSTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes")
    parser.add_argument("--operations", nargs="+", default=["allreduce"])
    parser.add_argument("--min-time-s", type=float, default=0.3, help="per operation and size")
    parser.add_argument("--quiet-cpus", type=float, default=0.2, help="others may use this many CPUs")
    parser.add_argument("--patience-s", type=float, default=10.0, help="wait so long for quiet")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<date>-<commit>-hosts-…")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    arguments = ["--sizes", *map(str, args.sizes), "--operations", *args.operations]
    arguments += ["--min-time-s", str(args.min_time_s), "--max-calls", "1000"]
    today, revision = datetime.date.today().isoformat(), commit()
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        SimulatedHosts(args.hosts, rate=args.rate) as hosts,
    ):
        for round_ in range(args.rounds):
            # Every second round backwards: nobody is always first.
            for peer in args.peers[:: -1 if round_ % 2 else 1]:
                others = wait_for_quiet(args.quiet_cpus, args.patience_s)
                print(f"round {round_ + 1}: {peer} (others use {others:.2f} CPUs)", flush=True)
                lines = Path(folder) / f"{peer}.{round_}"
                launch(peer, hosts, args.ranks_per_host, arguments, lines)
                rows += [
                    json.loads(line) | {"peer": peer, "round": round_}
                    for line in lines.read_text().splitlines()
                ]
    results = {
        "date": today,
        "commit": revision,
        "hosts": args.hosts,
        "ranks_per_host": args.ranks_per_host,
        "rate": args.rate,
        "rounds": args.rounds,
        "machine": machine() | versions(("torch", "mpi4py", "openmpi")),
        "rows": rows,
    }
    name = f"{today}-{revision}-hosts-{args.hosts}x{args.ranks_per_host}-{args.rate}"
    out: Path = args.out or ROOT / "benchmarks" / "results" / name
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "report.md").write_text(markdown(results))
    print((out / "report.md").read_text())
    print(f"written to {out}")


if __name__ == "__main__":
    main()
