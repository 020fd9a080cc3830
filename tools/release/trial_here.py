"""Tries what was built as a user would, in environments without a compiler: one per Python that is named.

    python -m tools.release.trial_here dist python3.10 python3.11 python3.13

With ``--torch`` PyTorch is there too, whose C++ library then lives beside the module's own. It is the one of
the environment that runs this, whose Python must be the one that is named: a copy would take gigabytes.

With ``--sources`` the sources are built instead, as pip does for those without a wheel. That needs a
compiler, which here warns of more than ours do.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.release.distributions import WORK

__all__ = ["main"]

LIMIT_S = 10.0
"""What installing and importing may take beyond the framework: of a processor, as others may compute here.
Nothing is downloaded meanwhile, so that alone on a machine it is the time that passes."""

_TRAINING = Path(__file__).with_name("numpy_training.py")
_EXCEPTIONS = Path(__file__).with_name("exceptions.py")
_WARN = "-Wconversion"
"""A warning that our own compilers are not asked for."""


def main(words: list[str]) -> int:
    """Try each; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path, help="the folder with the wheels")
    parser.add_argument("pythons", nargs="+", help="interpreters, as in python3.11")
    parser.add_argument("--torch", action="store_true", help="beside the PyTorch of this environment")
    parser.add_argument("--sources", action="store_true", help="build the sources in a fresh environment")
    args = parser.parse_args(words)
    for python in args.pythons:
        _try(args.dist.resolve(), python, args.torch, args.sources)
    return 0


def _try(dist: Path, python: str, torch: bool, sources: bool) -> None:
    folder = WORK / "trial" / Path(python).name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    program = folder / "bin" / "python"
    _pip(program, "numpy", "cloudpickle", "pyyaml")
    began, began_cpu = time.perf_counter(), _cpu_s()
    if sources:
        _build_sources(program, dist)
    else:
        _pip(program, "--no-index", "--only-binary=:all:", "--find-links", dist, "farandole", "horovod")
    installed_s, cpu_s = time.perf_counter() - began, _cpu_s() - began_cpu
    if torch:
        _show_torch(folder)
        imported_s = _import_time(program, "horovod.torch", "torch")
        subprocess.run([program, _EXCEPTIONS], check=True, env=_plain(program))
    else:
        imported_s = _import_time(program, "horovod.common.basics, horovod.collectives.numpy_frontend")
    print(
        f"{python}: installed in {installed_s:.1f} s ({cpu_s:.1f} s of a processor), "
        f"imported in {imported_s:.2f} s",
        flush=True,
    )
    if not sources and cpu_s + imported_s > LIMIT_S:
        raise SystemExit(f"{python}: installing and importing took more than {LIMIT_S} s of a processor")
    subprocess.run([folder / "bin" / "horovodrun", "--version"], check=True, env=_plain(program))
    job: list[str | Path] = [folder / "bin" / "horovodrun", "-np", "2", program, _TRAINING, digits()]
    subprocess.run(job, check=True, env=_plain(program), timeout=120)


def _build_sources(program: Path, dist: Path) -> None:
    """Have pip build and install the sources, with a compiler that warns."""
    (file,) = dist.glob("farandole-*.tar.gz")
    command: list[str | Path] = [program, "-m", "pip", "install", "--verbose", file]
    compilers = {"PATH": os.environ.get("PATH", os.defpath), "CXXFLAGS": _WARN}
    done = subprocess.run(
        command, env=_plain(program) | compilers, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\npip could not build {file.name}: see above")
    warnings = done.stdout.count(f"[{_WARN}")
    if not warnings:
        raise SystemExit(f"The compiler was asked for {_WARN} and warned of nothing: nothing was tried.")
    print(f"{file.name} was built, with {warnings} warnings", flush=True)


def _show_torch(folder: Path) -> None:
    """Let the environment in ``folder`` import PyTorch, and what it needs, from that of this process."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SystemExit("--torch needs PyTorch in the environment that runs this")
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch_of_another.pth").write_text(f"{Path(found.origin).parents[1]}\n")


def digits() -> Path:
    """The rows that the training learns from."""
    import sklearn

    return Path(sklearn.__file__).parent / "datasets" / "data" / "digits.csv.gz"


def _cpu_s() -> float:
    """Seconds of a processor that programs which have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _import_time(program: Path, modules: str, before: str = "sys") -> float:
    """Seconds of a processor that importing ``modules`` takes once ``before`` is there."""
    code = f"import {before}, time; t = time.process_time(); import {modules}; print(time.process_time() - t)"
    told = subprocess.run(
        [program, "-c", code], check=True, env=_plain(program), stdout=subprocess.PIPE, text=True
    )
    return float(told.stdout)


def _pip(program: Path, *what: str | Path) -> None:
    command = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([str(word) for word in (*command, *what)], check=True, env=_plain(program))


def _plain(program: Path) -> dict[str, str]:
    """Variables of somebody who has never seen this folder. Only programs beside ``program`` are found."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "CMAKE_CXX_COMPILER_LAUNCHER", "CC", "CXX"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"OMP_NUM_THREADS": "1", "PATH": str(program.parent)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
