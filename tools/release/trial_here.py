"""Tries what was built as a user would, in environments without a compiler: one per Python that is named.

    python -m tools.release.trial_here dist python3.10 python3.11 python3.13

With ``--torch`` the environment also gets PyTorch, whose C++ library then lives beside the module's own. With
``--sources`` the sources are built instead, as pip does for those without a wheel; that needs a compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.release.distributions import WORK

__all__ = ["main"]

LIMIT_S = 10.0
"""What installing and importing may take beyond the framework."""

_TRAINING = Path(__file__).with_name("numpy_training.py")
_EXCEPTIONS = Path(__file__).with_name("exceptions.py")


def main(words: list[str]) -> int:
    """Try each; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path, help="the folder with the wheels")
    parser.add_argument("pythons", nargs="+", help="interpreters, as in python3.11")
    parser.add_argument("--torch", metavar="REQUIREMENT", help="as in torch==2.13.0")
    parser.add_argument("--sources", action="store_true", help="build the sources in a fresh environment")
    args = parser.parse_args(words)
    for python in args.pythons:
        _try(args.dist.resolve(), python, args.torch, args.sources)
    return 0


def _try(dist: Path, python: str, torch: str | None, sources: bool) -> None:
    folder = WORK / "trial" / Path(python).name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    program = folder / "bin" / "python"
    _pip(program, "numpy", "cloudpickle", "pyyaml", *([torch] if torch else []))
    began = time.perf_counter()
    if sources:
        (file,) = dist.glob("rueda-*.tar.gz")
        _pip(program, file)
    else:
        _pip(program, "--no-index", "--only-binary=:all:", "--find-links", dist, "rueda", "horovod")
    installed_s = time.perf_counter() - began
    imported_s = _import_time(program, "horovod.common.basics, horovod.collectives.numpy_frontend")
    if torch:
        imported_s = _import_time(program, "horovod.torch", "torch")
        subprocess.run([program, _EXCEPTIONS], check=True, env=_plain())
    print(f"{python}: installed in {installed_s:.1f} s, imported in {imported_s:.2f} s", flush=True)
    if not sources and installed_s + imported_s > LIMIT_S:
        raise SystemExit(f"{python}: installing and importing took more than {LIMIT_S} s")
    subprocess.run([folder / "bin" / "horovodrun", "--version"], check=True, env=_plain())
    job: list[str | Path] = [folder / "bin" / "horovodrun", "-np", "2", program, _TRAINING, digits()]
    subprocess.run(job, check=True, env=_plain(), timeout=120)


def digits() -> Path:
    """The rows that the training learns from."""
    import sklearn

    return Path(sklearn.__file__).parent / "datasets" / "data" / "digits.csv.gz"


def _import_time(program: Path, modules: str, before: str = "sys") -> float:
    code = f"import {before}, time; t = time.perf_counter(); import {modules}; print(time.perf_counter() - t)"
    told = subprocess.run([program, "-c", code], check=True, env=_plain(), stdout=subprocess.PIPE, text=True)
    return float(told.stdout)


def _pip(program: Path, *what: str | Path) -> None:
    command = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([str(word) for word in (*command, *what)], check=True, env=_plain())


def _plain() -> dict[str, str]:
    """The environment of somebody who has never seen this folder."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "CMAKE_CXX_COMPILER_LAUNCHER"}
    return {name: value for name, value in os.environ.items() if name not in hidden} | {
        "OMP_NUM_THREADS": "1"
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
