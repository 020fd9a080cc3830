"""The measures of the house: how large the product is, and how easily one finds one's way in it.

    python -m tests.repo.house          # print them beside their ceilings
    python -m tests.repo.house --list docstrings

`test_house.py` fails above a ceiling. Who brings a number down brings its ceiling down.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.repo.imports import PACKAGE, imported, module_of
from tests.repo.walk import WALK

__all__ = ["MEASURES", "Measure", "begins_badly", "circles"]

ROOT = Path(__file__).parents[2]
_SOURCES = frozenset({".cpp", ".h", ".inl", ".py", ".pyi"})
_LAUNCHING = ("launch", "bootstrap", "spark", "ray", "runner")
_WEAK = re.compile(r"(What|Which|How|Where|Whether|Who|It|Those|That|Its|Their)\b")
_SMALL = 60
_OF_THE_INTERFACE = frozenset(
    {
        "BF16Compressor",
        "Backend",  # of collectives, and of estimators
        "Compression",
        "DistributedOptimizer",
        "ElasticSampler",
        "FP16Compressor",
        "ParquetDataModule",
        "SyncBatchNorm",
        "SyncBatchNormalization",
        "TorchEstimator",
        "TorchModel",
    }
)
"""Names that the interface itself has in several modules."""


@cache
def sources() -> tuple[Path, ...]:
    """The product's own files; not what a build has left there."""
    return tuple(
        path
        for folder in ("core", "src")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in _SOURCES and "__pycache__" not in path.parts
    )


@cache
def lines_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def trees() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple(
        (path, ast.parse(path.read_text(encoding="utf-8"))) for path in sources() if path.suffix == ".py"
    )


def begins_badly(docstring: str) -> bool:
    """Return whether it begins with a pronoun or a question, not with a noun or a verb."""
    return bool(_WEAK.match(docstring.strip()))


def weak_docstrings() -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and begins_badly(text := ast.get_docstring(node) or ""):
                line = 1 if isinstance(node, ast.Module) else node.lineno
                yield f"{place(path)}:{line}: {text.partition(chr(10))[0]}"


def twice() -> Iterator[str]:
    """Public classes of the package with one name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(place(path))
    for name, where in sorted(found.items()):
        if len(where) > 1 and name not in _OF_THE_INTERFACE:
            yield f"{name}: {', '.join(where)}"


def circles() -> Iterator[str]:
    """Pairs of folders of one level that import each other, maybe by way of others or inside functions.

    Two modules are compared where their paths part: `launch.agent.watch` and `launch.elastic.job` make an
    arrow between `launch.agent` and `launch.elastic`. A module beside folders counts as one.
    """
    modules = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    levels: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, path in modules.items():
        for name in imported(path):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            ours, theirs = module.split("."), name.split(".")
            common = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if common is not None and modules.get(name) is not None:
                mine, other = ".".join(ours[: common + 1]), ".".join(theirs[: common + 1])
                levels[".".join(ours[:common])][mine].add(other)
    for _, graph in sorted(levels.items()):
        reached = {node: _reached_from(node, graph) for node in sorted(graph)}
        for one, others in reached.items():
            yield from (
                f"{one} and {other}"
                for other in sorted(others)
                if one < other and one in reached.get(other, ())
            )


def _reached_from(node: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [node]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def small_files() -> Iterator[str]:
    for path in sources():
        if lines_of(path) < _SMALL:
            yield f"{place(path)}: {lines_of(path)}"


def naming_reducescatter() -> Iterator[str]:
    for path in sources():
        if re.search(r"reduce_?scatter", path.read_text(encoding="utf-8"), re.IGNORECASE):
            yield place(path)


def tracked() -> Iterator[str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    yield from filter(None, listing.stdout.split("\0"))


def _count(found: Callable[[], Iterator[str]]) -> Callable[[], int]:
    return lambda: sum(1 for _ in found())


def _launching() -> int:
    return sum(
        lines_of(path)
        for path in sources()
        if place(path).split("/")[2:3] and place(path).split("/")[2] in _LAUNCHING
    )


@dataclass(frozen=True)
class Measure:
    """A number that must not exceed ``ceiling``; with ``least``, not fall below it. ``found``: names each."""

    name: str
    what: str
    ceiling: int
    value: Callable[[], int]
    found: Callable[[], Iterator[str]] | None = None
    least: bool = False


MEASURES = (
    Measure("lines", "lines of core and src", 103_600, lambda: sum(map(lines_of, sources()))),
    Measure("launching", f"lines of {', '.join(_LAUNCHING)}", 39_000, _launching),
    Measure("circles", "pairs of folders, at any depth, that are in a circle", 0, _count(circles), circles),
    Measure(
        "docstrings",
        "docstrings that begin with What, Who, It and the like",
        0,
        _count(weak_docstrings),
        weak_docstrings,
    ),
    Measure("small", f"files with fewer than {_SMALL} lines", 168, _count(small_files), small_files),
    Measure(
        "median",
        "lines of the median file",
        115,
        lambda: int(statistics.median(map(lines_of, sources()))),
        least=True,
    ),
    Measure(
        "verb",
        "product files that name reducescatter",
        40,
        _count(naming_reducescatter),
        naming_reducescatter,
    ),
    Measure(
        "walk", "functions from -np to the environment of a worker", 25, lambda: len(WALK), lambda: iter(WALK)
    ),
    Measure("twice", "names of public classes that exist twice", 0, _count(twice), twice),
    Measure("tracked", "tracked files", 1_640, _count(tracked), tracked),
)


def _main() -> None:
    parser = argparse.ArgumentParser(description="The measures of the house, beside their ceilings.")
    parser.add_argument(
        "--list", metavar="NAME", help="name what a measure counts", choices=[m.name for m in MEASURES]
    )
    options = parser.parse_args()
    for measure in MEASURES:
        if options.list is None:
            limit = f"{'at least' if measure.least else 'at most'} {measure.ceiling:7,}"
            print(f"{measure.value():7,}  {limit}  {measure.what}")
        elif options.list == measure.name and measure.found is not None:
            print(*measure.found(), sep="\n")


if __name__ == "__main__":
    _main()
