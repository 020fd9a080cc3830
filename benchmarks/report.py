"""From rows of results to a table for people, a file for programs and a picture.

python -m benchmarks.report benchmarks/results/<date>-<commit>     # again from results.json
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from horovod.bench.options import size_name
from horovod.bench.plot import over_size
from horovod.bench.result import CALM_CPUS

TITLES = {
    "farandole": "farandole",
    "gloo": "PyTorch Gloo",
    "openmpi": "Open MPI",
    "limit": "in-place pass by all ranks",
}
WAYS = {
    "copies": "independent copies",
    "meeting": "copies in step",
    "farandole": "farandole",
    "ddp": "DDP over Gloo",
    "ddp-views": "DDP, bucket views",
    "openmpi": "Open MPI, after backward",
}
Row = dict[str, Any]


def calm(rows: list[Row]) -> list[Row]:
    """The rounds that other programs left alone; all of them if there is no such round."""
    return [row for row in rows if row.get("others_cpus", 0.0) <= CALM_CPUS] or rows


def cell(rows: list[Row], field: str, scale: float) -> str:
    """Median over calm rounds (lowest…highest); † where no round was calm, – where there is none."""
    if not rows:
        return "–"
    chosen = calm(rows)
    values = sorted(row[field] * scale for row in chosen)
    text = f"{statistics.median(values):.3g}" if values[-1] < 1000 else f"{statistics.median(values):.0f}"
    if len(values) > 1:
        low, high = (f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in (values[0], values[-1]))
        text += f" ({low}…{high})"
    return text + (" †" if chosen[0].get("others_cpus", 0.0) > CALM_CPUS else "")


def table(
    rows: list[Row],
    lines: Iterable[Any],
    belongs: Callable[[Row, Any], bool],
    name: Callable[[Any], str],
    field: str,
    scale: float,
    peers: list[str],
    titles: Mapping[str, str] = TITLES,
) -> list[str]:
    """A Markdown table: one line per element of `lines`, one column per peer."""
    text = ["| | " + " | ".join(titles[peer] for peer in peers) + " |", "|---|" + "---:|" * len(peers)]
    for line in lines:
        cells = [
            cell([r for r in rows if r["peer"] == peer and belongs(r, line)], field, scale) for peer in peers
        ]
        text.append(f"| {name(line)} | " + " | ".join(cells) + " |")
    return [*text, ""]


def allreduce_sizes(rows: list[Row]) -> list[int]:
    return sorted({row["bytes"] for row in rows if row["operation"] == "allreduce"})


def training(rows: list[Row]) -> list[str]:
    """Samples per second, and shares of what the copies beside them had; nothing if there are no rows."""
    if not rows:
        return []
    networks = list(dict.fromkeys(row["network"] for row in rows))
    ways = [way for way in WAYS if any(row["peer"] == way for row in rows)]
    text = []
    for title, field, columns in (
        ("Training: samples/s of all ranks", "samples_s", ways),
        ("Training: share of the independent copies in the same turns", "share", ways[1:]),
    ):
        text += [f"## {title}", ""]
        text += table(
            rows, networks, lambda row, name: row["network"] == name, str, field, 1.0, columns, WAYS
        )
    return text


def markdown(results: dict[str, Any]) -> str:
    rows: dict[str, list[Row]] = results["rows"]
    seen = {row["peer"] for program, part in rows.items() if program != "training" for row in part}
    peers = [peer for peer in TITLES if peer in seen]
    libraries = [peer for peer in peers if peer != "limit"]
    text = [
        f"# {results['date']}, commit {results['commit']}, {results['ranks']} ranks on one host",
        "",
        "; ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".",
        "",
        f"Peers ran interleaved in {results['rounds']} rounds; a cell is the median over rounds",
        f"(lowest…highest). Rounds in which other programs used more than {CALM_CPUS} CPUs are left out;",
        "† = there was no other round. The in-place pass is the memory's limit from about 64 KiB on; below,",
        "it is the cost of calling PyTorch.",
        "",
    ]
    collectives = rows.get("collectives", [])

    def is_allreduce(row: Row, size: int) -> bool:
        return bool(row["operation"] == "allreduce" and row["bytes"] == size)

    if collectives:
        sizes = allreduce_sizes(collectives)
        bus = 2 * (results["ranks"] - 1) / results["ranks"]
        for title, field, scale, columns in (
            ("Allreduce, float32: median, µs", "median_s", 1e6, peers),
            ("Allreduce: 99th percentile, µs", "p99_s", 1e6, libraries),
            (
                f"Allreduce: algorithm bandwidth, GB/s (bus bandwidth: × {bus:.3g})",
                "algbw_gb_s",
                1.0,
                libraries,
            ),
        ):
            text += [f"## {title}", ""]
            text += table(collectives, sizes, is_allreduce, size_name, field, scale, columns)
        paths = {
            size: row["path"]
            for size in sizes
            for row in collectives
            if is_allreduce(row, size) and row["path"]
        }
        text += [
            "Data path of farandole: " + ", ".join(f"{size_name(s)} {p}" for s, p in paths.items()) + ".",
            "",
        ]
        cases = list(
            dict.fromkeys(
                (row["operation"], row["bytes"]) for row in collectives if row["operation"] != "allreduce"
            )
        )
        text += ["## Other collectives, float32: median, µs", ""]
        text += table(
            collectives,
            cases,
            lambda row, key: (row["operation"], row["bytes"]) == key,
            lambda key: f"{key[0]}, {size_name(key[1])}",
            "median_s",
            1e6,
            libraries,
        )
    gradients = rows.get("gradients", [])
    if gradients:
        text += ["## One step's gradients, float32: median, ms", ""]
        text += table(
            gradients,
            list(dict.fromkeys((row["model"], row["way"]) for row in gradients)),
            lambda row, key: (row["model"], row["way"]) == key,
            lambda key: f"{key[0]}, {key[1]}",
            "median_s",
            1e3,
            peers,
        )
    text += training(rows.get("training", []))
    startup = rows.get("startup", [])
    if startup:
        text += ["## Start-up and memory per rank", ""]
        fields = {
            "startup_s": ("import of the library to first allreduce, ms", 1e3),
            "pss_mib": ("memory beyond tensors (PSS), MiB", 1.0),
            "rss_mib": ("memory beyond tensors (RSS), MiB", 1.0),
        }
        for i, (field, (name, scale)) in enumerate(fields.items()):
            lines = table(startup, [name], lambda _row, _name: True, str, field, scale, libraries)
            text += lines[:-1] if i == 0 else lines[2:-1]
        text.append("")
    return "\n".join(text)


def picture(results: dict[str, Any], file: Path) -> None:
    """Time of an allreduce over its size, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows: list[Row] = results["rows"].get("collectives", [])
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for peer, title in TITLES.items():
        points = []
        for size in allreduce_sizes(rows):
            mine = [
                row
                for row in rows
                if row["peer"] == peer and row["operation"] == "allreduce" and row["bytes"] == size
            ]
            if mine:
                points.append((size, statistics.median(row["median_s"] for row in calm(mine)) * 1e6))
        if points:
            over_size(axes, points, title, limit=peer == "limit")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="µs (median)")
    axes.set_title(f"Allreduce, float32, {results['ranks']} ranks on one host")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def write(results: dict[str, Any], folder: Path) -> None:
    """results.json, report.md and allreduce.png into `folder`."""
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    drawn = "\n![allreduce](allreduce.png)\n" if results["rows"].get("collectives") else ""
    (folder / "report.md").write_text(markdown(results) + drawn)
    picture(results, folder / "allreduce.png")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write(json.loads((target / "results.json").read_text()), target)
