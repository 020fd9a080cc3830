"""The tree whose engine and backends carry every mutant, and its build."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.mutation.points import Found, find
from tests.mutation.rewriting import Mutant, rewrite

ROOT = Path(__file__).resolve().parents[2]
WANTED = ("core/engine", "core/backends")
# Each file's mutants begin at a multiple of this: a change of one leaves the others' numbers alone.
BLOCK = 256


def _find(sources: Sequence[Path]) -> dict[str, Found]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        return find(sources, ROOT, WANTED, Path(folder, "headers.pch"))


def _write(path: Path, data: bytes) -> None:
    """What stays the same keeps its time, and is not compiled again."""
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _preface(path: Path) -> bytes:
    """Head of a rewritten file: the compiler takes it for one of the system and does not warn."""
    quick = '#pragma GCC optimize("O1")\n' if path.suffix == ".cpp" else ""
    return f'{quick}#include "{Path(__file__).with_name("mutants.h")}"\n# 1 "{path}" 3\n'.encode()


# The repository is installed in editable form, by a finder that comes before all paths. Some tests put the
# repository's sources before the paths that they were given.
_OWN_MODULE = b"""import sys

sys.path.insert(0, __file__.rpartition("/")[0])
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
"""


def _has_one(path: Path, parts: Sequence[str]) -> bool:
    name = str(path.relative_to(ROOT))
    return any(part in name for part in parts)


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.symlink_to(target)


def write_tree(build: Path, jobs: int, only: Sequence[str] = ()) -> tuple[list[Mutant], dict[str, int]]:
    """Write the instrumented tree to ``build/source``.

    Args:
        only: instrument files with one of these in their names; the others stay as they are.

    Returns:
        All mutants, and how many constants of each file the compiler needs: no process can choose them.
    """
    source = build / "source"
    (source / "core").mkdir(parents=True, exist_ok=True)
    for path in ROOT.iterdir():
        if path.name in ("CMakeLists.txt", "tests", "fuzz", "benchmarks"):
            _link(source / path.name, path)
    package = source / "src" / "horovod"  # Python's, with a native module of its own
    package.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / "src" / "horovod").iterdir():
        if not path.name.startswith("_core.c"):
            _link(package / path.name, path)
    _write(source / "src" / "sitecustomize.py", _OWN_MODULE)
    for path in (ROOT / "core").iterdir():
        if f"core/{path.name}" not in WANTED:
            _link(source / "core" / path.name, path)
    units = sorted(unit for folder in WANTED for unit in (ROOT / folder).rglob("*.cpp"))
    units = [unit for unit in units if not only or _has_one(unit, only)]
    found: dict[str, Found] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for part in pool.map(_find, [units[i::jobs] for i in range(jobs)]):
            found = part | found
    mutants: list[Mutant] = []
    number = 1
    for folder in WANTED:
        present = sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in (".cpp", ".h"))
        wanted = {source / p.relative_to(ROOT) for p in present}
        for stale in {p for p in (source / folder).rglob("*") if p.is_file()} - wanted:
            stale.unlink()
        for path in present:
            name = str(path.relative_to(ROOT))
            wanted_here = name in found and (not only or _has_one(path, only))
            points = found[name].points if wanted_here else []
            data, mine = rewrite(path.read_bytes(), points, number, name)
            _write(source / name, _preface(path) + data if points else data)
            mutants += mine
            number = (number + len(mine) + BLOCK) // BLOCK * BLOCK
    skipped = {name: one.skipped for name, one in found.items()}
    text = json.dumps({"mutants": [m.as_json() for m in mutants], "skipped": skipped}, indent=0)
    (build / "mutants.json").write_text(text)
    return mutants, skipped


def programs_of(build: Path) -> Path:
    """The folder of the test programs.

    It lies in the tree as the release build does in the repository, and has its options: what is not
    instrumented comes from the compiler's cache.
    """
    return build / "source" / "build" / "release"


def compile_tree(build: Path, jobs: int, targets: Sequence[str] = ()) -> Path:
    """Compile the test programs and the Python module.

    Args:
        targets: these programs (default: all).

    Returns:
        The folder of the test programs.
    """
    programs = programs_of(build)
    configure = [
        *("cmake", "-S", str(build / "source"), "-B", str(programs), "-G", "Ninja", "--log-level=WARNING"),
        *(
            "-DFARANDOLE_BUILD_TESTS=ON",
            "-DFARANDOLE_BUILD_PYTHON=ON",
            "-DFARANDOLE_INPLACE=ON",
            "-DFARANDOLE_WERROR=ON",
        ),
        *("-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"),
    ]
    subprocess.run(configure, check=True)
    wanted = ["--target", *targets] if targets else []
    # Every error at once: a place that cannot be rewritten shows in many files.
    build_all = ["cmake", "--build", str(programs), "--parallel", str(jobs), *wanted, "--", "-k", "0"]
    subprocess.run(build_all, check=True)
    return programs
