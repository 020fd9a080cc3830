"""How the control plane scales: the real negotiators of large jobs over a modelled network.

    python -m benchmarks.scaling                       # 8 to 4,096 hosts with 8 ranks each; minutes
    python -m benchmarks.scaling --hosts 8 64 --no-probe

First the model's numbers are measured on two simulated hosts (namespaces of this machine; needs root), unless
``--no-probe`` takes those of ``control_plane.h``. Then every size is simulated by ``bench_scaling``, a C++
program that is built on demand. Writes ``results.json``, ``report.md`` and ``control-plane.png``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.run import ROOT, commit
from tests.hosts.simulated import SimulatedHosts, why_not

from horovod.bench.result import machine

HOSTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
TENSORS = (1, 161)
MOST_RANKS_OF_MANY_TENSORS = 8192  # a rank takes 170 KB then
LIMIT_S = 1200.0
PORT = 29741
PROBES = 3

Row = dict[str, Any]


def build() -> Path:
    """The simulator, compiled with the release preset."""
    command = ["cmake", "--build", "--preset", "release", "--target", "bench_scaling"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    return ROOT / "build" / "release" / "bench_scaling"


def probe(program: Path) -> dict[str, float]:
    """What a control message costs between two simulated hosts, through the channel that ranks use."""
    found: list[dict[str, float]] = []
    with SimulatedHosts(2, rate="1gbit") as hosts:
        for number in range(PROBES):
            port = str(PORT + number)
            server = hosts.popen(1, str(program), "probe-serve", port)
            assert server.stdout is not None
            server.stdout.readline()
            done = hosts.run(0, str(program), "probe", hosts.addresses[1], port)
            server.wait(LIMIT_S)
            server.stdout.close()
            found.append(json.loads(done.stdout))
    trip = statistics.median(one["round_trip_us"] for one in found)
    message = statistics.median(one["message_us"] for one in found)
    # A round trip is four ends of a message, and the way twice.
    return {"latency": max(0.0, trip / 2 - 2 * message), "message": message, "rate": 125.0}


def simulate(program: Path, hosts: int, per_host: int, tensors: int, model: dict[str, float]) -> list[Row]:
    numbers = [f"{name}={value:.3f}" for name, value in model.items()]
    command = [str(program), "simulate", str(hosts), str(per_host), str(tensors), *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return [json.loads(line) for line in done.stdout.splitlines()]


def median(rows: Sequence[Row], what: str, field: str) -> float:
    return float(statistics.median(row[field] for row in rows if row["what"] == what))


def summary(rows: Sequence[Row], hosts: int, tensors: int) -> Row | None:
    mine = [row for row in rows if row["hosts"] == hosts and row["tensors"] == tensors]
    if not mine:
        return None
    return {
        "hosts": hosts,
        "ranks": mine[0]["ranks"],
        "messages": median(mine, "straggler", "busiest_in") + median(mine, "straggler", "busiest_out"),
        "kilobytes": (
            median(mine, "straggler", "busiest_bytes_in") + median(mine, "straggler", "busiest_bytes_out")
        )
        / 1000,
        "last": median(mine, "straggler", "last_us"),
        "together": median(mine, "together", "last_us"),
        "first_step": median(mine, "first", "last_us"),
        "root": median(mine, "straggler", "root_processor_us"),
        "build": median(mine, "world", "build_us"),
        "bytes": median(mine, "world", "bytes"),
    }


def write_report(folder: Path, rows: Sequence[Row], model: dict[str, float]) -> None:
    lines = ["# The control plane by number of hosts", ""]
    lines += ["Model: " + ", ".join(f"{name} {value:.2f}" for name, value in model.items()), ""]
    for tensors in sorted({row["tensors"] for row in rows}):
        lines += [
            f"## {tensors} tensor{'s' if tensors > 1 else ''} a step",
            "",
            "| hosts | ranks | messages at the busiest | KB there | last arrival to last dispatch, µs"
            " | all at once, µs | first step, µs | processor of rank 0, µs |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for hosts in sorted({row["hosts"] for row in rows}):
            one = summary(rows, hosts, tensors)
            if one is not None:
                lines.append(
                    f"| {hosts:,} | {one['ranks']:,} | {one['messages']:.0f} | {one['kilobytes']:.1f} "
                    f"| {one['last']:,.0f} | {one['together']:,.0f} | {one['first_step']:,.0f} "
                    f"| {one['root']:,.0f} |"
                )
        lines.append("")
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


def draw(folder: Path, rows: Sequence[Row]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (times, loads) = plt.subplots(1, 2, figsize=(11, 4.2))
    for tensors, colour in zip(
        sorted({row["tensors"] for row in rows}), ("tab:blue", "tab:orange"), strict=False
    ):
        found = [summary(rows, hosts, tensors) for hosts in sorted({row["hosts"] for row in rows})]
        known = [one for one in found if one is not None]
        ranks = [one["ranks"] for one in known]
        name = f"{tensors} tensor{'s' if tensors > 1 else ''}"
        times.plot(ranks, [one["last"] for one in known], "o-", color=colour, label=f"{name}: last rank late")
        times.plot(
            ranks, [one["together"] for one in known], "s--", color=colour, label=f"{name}: all at once"
        )
        times.plot(
            ranks, [one["first_step"] for one in known], "^:", color=colour, label=f"{name}: first step"
        )
        loads.plot(ranks, [one["kilobytes"] for one in known], "o-", color=colour, label=f"{name}: KB")
        if tensors == 1:
            loads.plot(ranks, [one["messages"] for one in known], "k.-", label="messages")
    for axes, title in (
        (times, "µs from the last arrival to the last dispatch"),
        (loads, "at the busiest node, a step"),
    ):
        axes.set(xscale="log", yscale="log", xlabel="ranks (8 on each host)", title=title)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "control-plane.png", dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=list(HOSTS))
    parser.add_argument("--ranks-per-host", type=int, default=8)
    parser.add_argument("--tensors", type=int, nargs="+", default=list(TENSORS))
    parser.add_argument("--no-probe", action="store_true", help="take the numbers of control_plane.h")
    parser.add_argument("--again", type=Path, help="only write report and picture of this folder anew")
    options = parser.parse_args()
    if options.again is not None:
        kept = json.loads((options.again / "results.json").read_text(encoding="utf-8"))
        write_report(options.again, kept["rows"], kept["model"])
        draw(options.again, kept["rows"])
        return 0
    program = build()
    model: dict[str, float] = {}
    if not options.no_probe:
        if reason := why_not():
            sys.exit(f"{reason}; --no-probe does without")
        model = probe(program)
        print(f"model: {model}", flush=True)
    rows: list[Row] = []
    for hosts in options.hosts:
        for tensors in options.tensors:
            if tensors > 1 and hosts * options.ranks_per_host > MOST_RANKS_OF_MANY_TENSORS:
                continue
            rows += simulate(program, hosts, options.ranks_per_host, tensors, model)
            print(summary(rows, hosts, tensors), flush=True)
    today = datetime.date.today().isoformat()
    folder = ROOT / "benchmarks" / "results" / f"{today}-{commit()}-scaling"
    folder.mkdir(parents=True, exist_ok=True)
    said = {"machine": machine(), "model": model, "rows": rows}
    (folder / "results.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    write_report(folder, rows, model)
    draw(folder, rows)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
