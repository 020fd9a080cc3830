"""Batches of PyTorch from Parquet: the reader beside the same arrays in memory, and beside Petastorm.

    python -m benchmarks.parquet --petastorm OTHER/bin/python

Petastorm runs in an environment of its own, as it needs an older pyarrow: `pip install petastorm==0.13.1
"pyarrow<15" "numpy<2" "pandas<2.2" torch`. Without `--petastorm` it is left out.

Peers take turns, every second round backwards: one epoch each. Before they are measured each makes an epoch
in which every row must come once. `alone` takes batches and does nothing with them. `training` takes a step
with each, of a network of 85,000 parameters, as one rank; `little training` one of a network that computes
next to nothing. A row is a list of 64 floats and two integers, or 16 columns of floats and these integers.
Samples per second of CPU count all threads: they say what a machine without a free core would see.

This file runs in both environments: it imports each peer where it is used.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

Batch = dict[str, Any]
Case = tuple[str, str, str]
"""Peer, work, layout."""

BATCH = 256
WIDTH = {"lists": 64, "columns": 16}
THREADS = 2
TRIES = 10
"""Petastorm's reader ends now and then without a row, where the machine is busy: such epochs do not count."""

MIXED_ROWS = 50_000
"""Rows that Petastorm mixes; the reader here takes 32 MB of rows."""


def write(folder: Path, layout: str, rows: int, files: int = 8) -> None:
    """Rows of random numbers, compressed as Spark does it, in row groups of 16 MiB or a file."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    numbers = np.random.default_rng(0)
    for file, part in enumerate(np.array_split(np.arange(rows), files)):
        values = numbers.standard_normal((len(part), WIDTH[layout]), dtype=np.float32)
        columns: dict[str, Any] = {f"f{number:02}": values[:, number] for number in range(WIDTH[layout])}
        if layout == "lists":
            ends = np.arange(0, values.size + 1, WIDTH[layout], dtype=np.int32)
            columns = {"x": pa.ListArray.from_arrays(pa.array(ends), pa.array(values.ravel()))}
        table = pa.table({**columns, "row": part, "label": part % 10})
        group = (16 << 20) // (4 * WIDTH[layout])
        parquet.write_table(table, folder / f"{file}.parquet", row_group_size=group)


# -- peers: each returns a function that makes the batches of an epoch ---------------------------------------


def reader(folder: Path) -> Callable[[], Iterator[Batch]]:
    """Everything anew in every epoch, the list of files and what would still be in memory included."""
    from horovod.data.parquet import ParquetReader
    from horovod.spark.data_loaders.pytorch_data_loaders import as_tensors

    def epoch() -> Iterator[Batch]:
        with ParquetReader(folder, batch_size=BATCH, epochs=1, workers=THREADS) as batches:
            yield from map(as_tensors, batches)

    return epoch


def memory(folder: Path) -> Callable[[], Iterator[Batch]]:
    """The same arrays, all in memory, in another order in every epoch."""
    import numpy as np
    import torch

    from horovod.data.parquet import ParquetReader

    with ParquetReader(folder, batch_size=1 << 24, epochs=1, shuffle=False) as batches:
        (whole,) = batches
    tensors = {name: torch.from_numpy(values) for name, values in whole.items()}
    rows = len(whole["row"])
    numbers = np.random.default_rng(0)

    def epoch() -> Iterator[Batch]:
        order = torch.from_numpy(numbers.permutation(rows))
        for start in range(0, rows, BATCH):
            chosen = order[start : start + BATCH]
            yield {name: values[chosen] for name, values in tensors.items()}

    return epoch


def petastorm_reader(folder: Path) -> Callable[[], Iterator[Batch]]:
    """What `make_batch_reader` gives: arrays of whole row groups, their rows in the order of the file."""
    from petastorm import make_batch_reader

    def epoch() -> Iterator[Batch]:
        with make_batch_reader(
            f"file://{folder}", num_epochs=1, shuffle_row_groups=True, workers_count=THREADS
        ) as groups:
            for group in groups:
                yield group._asdict()

    return epoch


def petastorm(folder: Path) -> Callable[[], Iterator[Batch]]:
    """Batches of tensors in a random order, by its loader over `make_batch_reader`."""
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    def epoch() -> Iterator[Batch]:
        groups = make_batch_reader(
            f"file://{folder}", num_epochs=1, shuffle_row_groups=True, workers_count=THREADS
        )
        with BatchedDataLoader(groups, batch_size=BATCH, shuffling_queue_capacity=MIXED_ROWS) as batches:
            yield from batches

    return epoch


PEERS = {each.__name__: each for each in (reader, memory, petastorm, petastorm_reader)}
ELSEWHERE = {"petastorm", "petastorm_reader"}
WORKS: dict[str, tuple[list[str], tuple[int, ...]]] = {
    "alone": ([*PEERS], ()),
    "training": (["reader", "memory", "petastorm"], (256, 256)),
    "little training": (["reader", "memory", "petastorm"], (16,)),
}
"""What is done with batches: by which peers, and by layers of which width."""


# -- measuring -----------------------------------------------------------------------------------------------


def stepper(layout: str, widths: tuple[int, ...]) -> Callable[[Batch], None]:
    """A step of training with a batch."""
    import torch

    torch.manual_seed(0)
    sizes = [WIDTH[layout], *widths, 10]
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    names = sorted(f"f{number:02}" for number in range(WIDTH[layout]))

    def step(batch: Batch) -> None:
        x = batch["x"] if layout == "lists" else torch.stack([batch[name] for name in names], dim=1)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), batch["label"]).backward()
        optimizer.step()

    return step


class Peer:
    """A peer in this process.

    Args:
        name: of the peer.
        folder: of the data in one layout.
    """

    def __init__(self, name: str, layout: str, folder: Path) -> None:
        self._name, self._layout = name, layout
        self._epoch = PEERS[name](folder)
        rows: list[int] = []
        for _ in range(TRIES):
            rows = rows or sorted(int(row) for batch in self._epoch() for row in batch["row"])
        assert rows == list(range(len(rows))) != [], f"{name} gives other rows than there are"
        self._rows = len(rows)

    def measure(self, work: str) -> dict[str, float]:
        """Samples/s of an epoch, by the clock and of CPU time."""
        widths = WORKS[work][1]
        step = stepper(self._layout, widths) if widths else len
        for _ in range(TRIES):
            samples, begun, computed = 0, time.perf_counter(), time.process_time()
            for batch in self._epoch():
                step(batch)
                samples += len(batch["row"])
            seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - computed
            if samples == self._rows:
                return {"per_s": samples / seconds, "per_cpu_s": samples / cpu_seconds}
            assert self._name in ELSEWHERE, f"{self._name}: an epoch had {samples} of {self._rows} rows"
            print(f"{self._name}: an epoch had {samples} of {self._rows} rows", file=sys.stderr, flush=True)
        raise SystemExit(f"{self._name}: rows are missing in {TRIES} epochs")


def serve(folder: Path) -> None:
    """Measure what lines of the standard input ask for: peer, work, layout."""
    known: dict[tuple[str, str], Peer] = {}
    for line in sys.stdin:
        name, work, layout = json.loads(line)
        if (name, layout) not in known:
            known[name, layout] = Peer(name, layout, folder / layout)
        print(json.dumps(known[name, layout].measure(work)), flush=True)


class Process:
    """A process that measures."""

    def __init__(self, python: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-W", "ignore", __file__, "--serve", str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, case: Case) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(case), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise SystemExit(f"{' '.join(case)} failed")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def spread(values: Iterable[float], digits: int = 0) -> str:
    """Median, lowest and highest."""
    found = sorted(values)
    median, low, high = (f"{each:,.{digits}f}" for each in (statistics.median(found), found[0], found[-1]))
    return f"{median} ({low}-{high})"


def report(found: Mapping[Case, list[dict[str, float]]]) -> None:
    """Print a table."""
    print(
        "| rows are | work | peer | 1,000 samples/s | the same, of CPU | beside memory | beside Petastorm |"
    )
    print("|---|---|---|---|---|---|---|")
    for (peer, work, layout), results in found.items():
        cells = [spread(result[key] / 1000 for result in results) for key in ("per_s", "per_cpu_s")]
        for other in ("memory", "petastorm"):
            pairs = list(zip(results, found.get((other, work, layout), results), strict=True))
            there = (other, work, layout) in found and other != peer
            cells.append(spread((x["per_cpu_s"] / y["per_cpu_s"] for x, y in pairs), 2) if there else "")
        print(f"| {layout} | {work} | {peer} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--petastorm", metavar="PYTHON", help="of an environment that has it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    cases: list[Case] = [
        (peer, work, layout)
        for layout in WIDTH
        for work in options.works
        for peer in WORKS[work][0]
        if options.petastorm or peer not in ELSEWHERE
    ]
    found: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        for layout in WIDTH:
            write(Path(name, layout), layout, options.rows)
        ours = Process(sys.executable, Path(name))
        theirs = Process(options.petastorm, Path(name)) if options.petastorm else ours
        for number in range(options.rounds):
            for case in cases if number % 2 == 0 else cases[::-1]:
                found[case].append((theirs if case[0] in ELSEWHERE else ours).measure(case))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        ours.close()
        theirs.close()
    report(found)


if __name__ == "__main__":
    main()
