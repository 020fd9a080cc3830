"""What it costs to add something: the product files that name the youngest of its kind.

The table of CONTRIBUTING.md is made from this:

    python -m tests.repo.prices --write
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from tests.repo.tables import ROOT, Table, write_or_print

__all__ = ["PRICES_TABLE", "Price", "files_that_name"]

_PRODUCT = ("core", "src")
_SOURCES = frozenset({".cpp", ".h", ".inl", ".py", ".pyi"})


@dataclass(frozen=True)
class Price:
    """What is ``new`` and what is ``edited``, in words; then what the youngest of the kind really cost.

    ``pattern``: a regular expression for the names of ``example``; ``own``: where its own files are.
    """

    kind: str
    new: str
    edited: str
    example: str
    pattern: str
    own: str


PRICES = (
    Price(
        "a collective",
        "1 file each in `core/collectives`, `src/horovod/collectives` and the `collectives` of "
        "`src/horovod/torch`, `src/horovod/tensorflow` and `src/horovod/arrays`",
        "number, registry row, the stub, the lists in `forms.py` and the three `mpi_ops.py`, the op's row in "
        "the glue, the interface of Keras; with a new verb `backend.h` and backends in Python",
        "reduce",
        r"kReduce\b|Kind::Reduce\b|\bReduce = 10|collectives\.reduce\b|def reduce\(\s*self,\s*value|"
        r"\bREDUCE: int",
        r"collectives/reduce\.",
    ),
    Price(
        "a backend",
        "1 folder in `core/backends`",
        "1 row in `core/backends/registry.cpp`",
        "hierarchical",
        r"hierarchical(?![-_]all)",  # not the options of that name, which choose no backend
        r"hierarchical",
    ),
    Price(
        "a frontend",
        "1 folder in `src/horovod`, 1 in `tests/contract`",
        "1 extra in `pyproject.toml`, its names in `tests/repo`, 1 row each for Keras and `--check-build`; "
        "of glue: `CMakeLists.txt`, `Makefile`, `build.targets`",
        "keras",
        r"keras",
        r"keras",
    ),
    Price(
        "a launcher",
        "1 file in `src/horovod/launch/launchers`",
        "1 row in `src/horovod/launch/contracts/registry.py`",
        "jsrun",
        r"jsrun",
        r"jsrun",
    ),
    Price(
        "a setting",
        "—",
        "1 field of the settings; of the engine: 1 field of the options of a part",
        "stall_warning_s",
        r"stall_(warning|check)",
        r"$^",
    ),
)


def files_that_name(price: Price, root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Its own files, and the others of the product that name it; paths below ``root``."""
    name = re.compile(price.pattern, re.IGNORECASE)
    own = re.compile(price.own, re.IGNORECASE)
    its: list[str] = []
    others: list[str] = []
    for folder in _PRODUCT:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in _SOURCES or "__pycache__" in path.parts:
                continue
            place = path.relative_to(root).as_posix()
            if own.search(place):
                its.append(place)
            elif name.search(path.read_text(encoding="utf-8")):
                others.append(place)
    return its, others


def _table() -> str:
    rows = ["| to add | new | edited | product files that name one: its own, others | recipe |"]
    rows.append("|---|---|---|---|---|")
    for price in PRICES:
        its, others = files_that_name(price)
        recipe = f"[howto](docs/howto/add-{price.kind.replace(' ', '-')}.md)"
        cost = f"{price.example}: {len(its)}, {len(others)}"
        rows.append(f"| {price.kind} | {price.new} | {price.edited} | {cost} | {recipe} |")
    return "\n".join(rows) + "\n"


PRICES_TABLE = Table("CONTRIBUTING.md", "prices", "prices", _table)


def _main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to add something to the product.")
    parser.add_argument("--list", action="store_true", help="name the files")
    if not write_or_print(parser, PRICES_TABLE).list:
        return
    for price in PRICES:
        its, others = files_that_name(price)
        for what, files in (("own", its), ("others", others)):
            print(f"{price.kind} ({price.example}), {what}:", *files, sep="\n  ")


if __name__ == "__main__":
    _main()
