"""The tree whose engine and backends carry every mutant, and its build."""

from __future__ import annotations

import json
import subprocess
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


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.symlink_to(target)


def write_tree(build: Path, jobs: int) -> tuple[list[Mutant], dict[str, int]]:
    """Write the instrumented tree to ``build/source``.

    Returns:
        All mutants, and how many constants of each file the compiler needs: no process can choose them.
    """
    source = build / "source"
    (source / "core").mkdir(parents=True, exist_ok=True)
    for path in ROOT.iterdir():
        if path.name in ("CMakeLists.txt", "tests", "fuzz", "benchmarks"):
            _link(source / path.name, path)
    for path in (ROOT / "core").iterdir():
        if f"core/{path.name}" not in WANTED:
            _link(source / "core" / path.name, path)
    units = sorted(unit for folder in WANTED for unit in (ROOT / folder).rglob("*.cpp"))
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
            points = found[name].points if name in found else []
            data, mine = rewrite(path.read_bytes(), points, number, name)
            _write(source / name, data)
            mutants += mine
            number = (number + len(mine) + BLOCK) // BLOCK * BLOCK
    skipped = {name: one.skipped for name, one in found.items()}
    text = json.dumps({"mutants": [m.as_json() for m in mutants], "skipped": skipped}, indent=0)
    (build / "mutants.json").write_text(text)
    return mutants, skipped


def compile_tree(build: Path, jobs: int) -> Path:
    """Returns: the folder of the test programs."""
    programs = build / "programs"
    flags = f"-O1 -w -Wno-narrowing -include {Path(__file__).with_name('mutants.h')}"
    configure = [
        *("cmake", "-S", str(build / "source"), "-B", str(programs), "-G", "Ninja", "--log-level=WARNING"),
        *("-DRUEDA_BUILD_PYTHON=OFF", "-DRUEDA_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=Mutants"),
        f"-DCMAKE_CXX_FLAGS_MUTANTS={flags}",
    ]
    subprocess.run(configure, check=True)
    # Every error at once: a place that cannot be rewritten shows in many files.
    subprocess.run(["cmake", "--build", programs, "--parallel", str(jobs), "--", "-k", "0"], check=True)
    return programs
