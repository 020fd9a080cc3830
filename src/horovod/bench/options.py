"""The command line of ``python -m horovod.bench``."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from horovod.bench.operations import BUS_FACTORS, OPERATIONS
from horovod.config import Read, at_least

__all__ = ["COMPARED", "DTYPES", "OPS", "Options", "parse", "parse_size", "series", "size_name"]

# Element types and their bytes.
DTYPES: Mapping[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "bool": 1,
}
OPS = ("sum", "average", "min", "max", "product", "adasum")
COMPARED = ("gloo", "mpi")

_DESCRIPTION = """\
Measure collectives on this machine: time, bandwidth, the path that carried
the bytes, and how near that is to what the machine can do.
"""
_EPILOG = """\
examples:
  python -m horovod.bench -np 2                          allreduce, 4 B to 64 MiB
  horovodrun -np 2 python -m horovod.bench allreduce --min 4 --max 64M
  python -m horovod.bench -np 2 all --sizes 1K,1M,64M
  python -m horovod.bench -np 4 allreduce --dtype bfloat16 --op average
  python -m horovod.bench -np 4 allreduce --process-set 0,2
  python -m horovod.bench -np 2 allreduce --sizes 64K --asynchronous 16
  python -m horovod.bench -np 2 all --compare gloo,mpi --json a.json --plot a.png

columns:
  size    bytes of one operation: the input's, of allgather the whole output's
  count   elements of a rank's input
  time    median of all calls; a call's time is that of its slowest rank
  p99     99th percentile of the calls
  algbw   size / time, in 10^9 bytes per second
  busbw   algbw times, n being the number of ranks,
{bus_factors}
  limit   share of this machine's limit: how long all ranks at once need to pass
          over as many bytes in place, measured in the same run. Below about
          64 KiB that is what calling PyTorch costs, and says little. A
          collective that touches fewer bytes may come to more than 100
  path    what carried the bytes: see horovod.observe.data_paths
  gloo    the time of a library it is compared with; ratio: how many times as
          long as ours it took, the median over rounds

Libraries are measured in rounds, one after another, every second round
backwards. Every result is checked before it is timed.
"""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """Options of a measurement; see ``--help``."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    op: str
    processes: int | None
    process_set: tuple[int, ...]
    tensors: int
    asynchronous: int
    rounds: int
    time_s: float
    compare: tuple[str, ...]
    json: Path | None
    plot: Path | None
    progress: str


class _Parser(argparse.ArgumentParser):
    """Every rank reads the same command line, so only one rank reports what is wrong with it."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__(
            prog="python -m horovod.bench",
            description=_DESCRIPTION,
            epilog=_EPILOG.format(bus_factors=_bus_factors()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self._silent = silent

    def error(self, message: str) -> NoReturn:
        if self._silent:
            self.exit(0)  # a failure of its own could end the job before the other rank has spoken
        hint = "`python -m horovod.bench --help` lists the options and shows examples."
        self.exit(2, f"horovod.bench: {message}\n{hint}\n")

    def print_help(self, file: object = None) -> None:
        if not self._silent:
            super().print_help()


def parse(words: Sequence[str], *, silent: bool = False) -> Options:
    """Read the command line. Wrong usage ends the process with status 2, as ``--help`` does with 0.

    Args:
        silent: say nothing and succeed then, because another rank speaks and fails.
    """
    parser = _make_parser(silent=silent)
    given = parser.parse_args(words)
    try:
        return _checked(given)
    except ValueError as error:
        parser.error(str(error))


def _bus_factors() -> str:
    lines = []
    for factor in BUS_FACTORS:
        names = ", ".join(name for name, operation in OPERATIONS.items() if operation.bus == factor)
        lines.append(f"          {factor} for {names}")
    return "\n".join(lines)


def _make_parser(*, silent: bool) -> _Parser:
    parser = _Parser(silent=silent)
    parser.add_argument(
        "operations",
        metavar="OPERATION",
        nargs="*",
        help=f"{', '.join(OPERATIONS)}, or all (default: allreduce)",
    )
    group = parser.add_argument_group("what")
    group.add_argument("-h", "--help", action="help", help="show this and exit")
    group.add_argument(
        "-np", "--num-proc", metavar="N", type=_told(at_least(1)), help="start N processes; not inside a job"
    )
    group.add_argument("--min", metavar="SIZE", type=_told(parse_size), help="smallest size (default 4)")
    group.add_argument("--max", metavar="SIZE", type=_told(parse_size), help="largest size (default 64M)")
    group.add_argument(
        "--factor",
        metavar="F",
        type=_told(at_least(-math.inf, float)),
        help="from a size to the next (default 4)",
    )
    group.add_argument("--sizes", metavar="A,B,..", help="these sizes instead, for example 4,64K,64M")
    group.add_argument("--dtype", metavar="TYPE", default="float32", help=f"{', '.join(DTYPES)}")
    group.add_argument("--op", metavar="OP", default="sum", help=f"{', '.join(OPS)} (default sum)")
    group.add_argument(
        "--process-set", metavar="A,B,..", default="", help="ranks that take part (default: all)"
    )
    group.add_argument(
        "--tensors",
        metavar="N",
        type=_told(at_least(1)),
        default=8,
        help="tensors of a grouped_allreduce, which share the size (default 8)",
    )
    group.add_argument(
        "--asynchronous",
        metavar="N",
        type=_told(at_least(1)),
        default=0,
        help="start N operations before waiting for them; times are per operation",
    )
    group = parser.add_argument_group("how")
    group.add_argument("--rounds", metavar="N", type=_told(at_least(1)), default=3, help="default 3")
    group.add_argument(
        "--time-s",
        metavar="SECONDS",
        type=_told(at_least(-math.inf, float)),
        default=0.1,
        help="for each size, library and round, at least (default 0.1)",
    )
    group.add_argument(
        "--compare",
        metavar="A,B",
        default="",
        help="gloo: torch.distributed, in the same processes; mpi: mpi4py, in processes of its own",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", type=Path, help="write everything that was measured")
    group.add_argument("--plot", metavar="FILE", type=Path, help="draw it (.png, .svg, .pdf)")
    group.add_argument(
        "--progress",
        choices=("auto", "line", "lines", "none"),
        default="auto",
        help="on standard error: one line that changes, or a line every few seconds (auto: whether it "
        "is a terminal)",
    )
    return parser


def _checked(given: argparse.Namespace) -> Options:
    operations = _choices("operation", given.operations or ["allreduce"], (*OPERATIONS, "all"))
    if "all" in operations:
        operations = tuple(OPERATIONS)
    (dtype,) = _choices("--dtype", [given.dtype], tuple(DTYPES))
    (op,) = _choices("--op", [given.op], OPS)
    if op == "adasum" and not dtype.startswith(("float", "bfloat")):
        raise ValueError(f"--op adasum: it has floating-point types only, not {dtype}")
    for name in operations:
        without = OPERATIONS[name].without
        if op in without:
            left = " and ".join(each for each in OPS if each not in without)
            raise ValueError(f"--op {op}: {name} has {f'{left} only' if len(without) > 1 else f'no {op}'}")
    if "barrier" in operations and given.asynchronous:
        if operations == tuple(OPERATIONS):
            operations = tuple(name for name in OPERATIONS if name != "barrier")
        else:
            raise ValueError("--asynchronous: a barrier is always waited for")
    if not given.time_s > 0:
        raise ValueError(f"--time-s {given.time_s:g}: must be above 0")
    return Options(
        operations=operations,
        sizes=_sizes(given),
        dtype=dtype,
        op=op,
        processes=given.num_proc,
        process_set=_ranks(given.process_set),
        tensors=given.tensors,
        asynchronous=given.asynchronous,
        rounds=given.rounds,
        time_s=given.time_s,
        compare=_choices("--compare", _list(given.compare), COMPARED),
        json=given.json,
        plot=given.plot,
        progress=given.progress,
    )


def _sizes(given: argparse.Namespace) -> tuple[int, ...]:
    if given.sizes is None:
        smallest, largest = given.min or 4, given.max or 64 << 20
        try:
            return series(smallest, largest, 4 if given.factor is None else given.factor)
        except ValueError as error:
            raise ValueError(f"{'--factor' if smallest <= largest else '--min, --max'}: {error}") from None
    for name in ("min", "max", "factor"):
        if getattr(given, name) is not None:
            raise ValueError(f"--sizes and --{name} exclude each other")
    try:
        sizes = tuple(parse_size(text) for text in _list(given.sizes))
    except ValueError as error:
        raise ValueError(f"--sizes: {error}") from None
    if not sizes:
        raise ValueError("--sizes: no size was given")
    return sizes


def _ranks(text: str) -> tuple[int, ...]:
    ranks = []
    for word in _list(text):
        if not word.isdecimal():
            raise ValueError(f"--process-set: {word!r} is no rank; write them as 0,2")
        ranks.append(int(word))
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"--process-set {text}: a rank is named twice")
    return tuple(sorted(ranks))


def _list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _choices(name: str, words: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    for word in words:
        if word not in known:
            raise ValueError(f"{name} {word!r} does not exist; choose from {', '.join(known)}")
    return tuple(dict.fromkeys(words))


def _told(read: Read) -> Read:
    """``read`` for argparse: its error becomes the message of argparse."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reader


def parse_size(text: str) -> int:
    """Bytes that ``text`` means.

    Raises:
        ValueError: not a size, or not a whole number of bytes, at least 1.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with K, M or G, for example 64K")
    value = float(found[1]) * _UNITS[found[2].upper()]
    if value < 1 or value != int(value):
        raise ValueError(f"{text!r} is no size: it must be a whole number of bytes, at least 1")
    return int(value)


def series(smallest_bytes: int, largest_bytes: int, factor: float) -> tuple[int, ...]:
    """Sizes from the smallest to the largest, each ``factor`` times the one before.

    Raises:
        ValueError: the smallest is larger than the largest, or the factor is not above 1.
    """
    if smallest_bytes > largest_bytes:
        raise ValueError(f"{smallest_bytes} bytes to {largest_bytes} bytes: the smallest must not be larger")
    if not factor > 1:
        raise ValueError(f"{factor:g} must be above 1, as each size is that many times the one before")
    sizes: list[int] = []
    size = float(smallest_bytes)
    while size <= largest_bytes:
        if not sizes or int(size) > sizes[-1]:
            sizes.append(int(size))
        size *= factor
    return tuple(sizes)


def size_name(size_bytes: int) -> str:
    """``64 KiB``, ``1.5 MiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"
