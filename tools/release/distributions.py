"""Makes the files of a release: the sources, a wheel for each machine and Python, and a name for dependants.

The wheels are made from the sources that are released, not from the working tree: what is missing there is
noticed.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
from pathlib import Path

from tools.release.commands import output, python, run
from tools.release.targets import Abi, Machine

__all__ = ["ROOT", "WORK", "horovod_name", "native_wheel", "pure_wheel", "source_distribution", "unpacked"]

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheels"
"""What is made on the way and kept: the sources, compiled objects of each machine, what is tried."""

_BUILD_SDIST = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"


def source_distribution(into: Path) -> Path:
    """The sources, as ``farandole-VERSION.tar.gz``."""
    into.mkdir(parents=True, exist_ok=True)
    return into / output(sys.executable, "-c", _BUILD_SDIST, into, cwd=ROOT).splitlines()[-1]


def unpacked(sources: Path, into: Path) -> Path:
    """The folder with the sources. Files that are as they were keep their time: only changes are compiled."""
    folder, parent = into / "sources", into / "unpacking"
    shutil.rmtree(parent, ignore_errors=True)
    with tarfile.open(sources) as archive:
        # Python before 3.10.12 and 3.11.4 (Debian 12 has 3.11.2) knows no filter. The archive is our own.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(parent)
    fresh = parent / sources.name.removesuffix(".tar.gz")
    wanted = {file.relative_to(fresh): file for file in fresh.rglob("*") if file.is_file()}
    for old in [file for file in folder.rglob("*") if file.is_file()]:
        if old.relative_to(folder) not in wanted:
            old.unlink()
    for name, file in wanted.items():
        place = folder / name
        if not place.exists() or place.read_bytes() != file.read_bytes():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    return folder


def pure_wheel(source: Path, into: Path) -> Path:
    """Everything but the native modules: the part that all wheels share."""
    shutil.rmtree(into, ignore_errors=True)
    _pip_wheel(source, into, "--config-settings=wheel.cmake=false", "--config-settings=wheel.py-api=py3")
    (wheel,) = into.glob("farandole-*.whl")
    return wheel


def horovod_name(into: Path) -> Path:
    """The empty distribution ``horovod``, so that packages that require it get Farandole."""
    _pip_wheel(Path(__file__).parent / "horovod", into)
    (wheel,) = into.glob("horovod-*.whl")
    return wheel


def native_wheel(pure: Path, modules: Path, machine: Machine, abi: Abi, work: Path, into: Path) -> Path:
    """A wheel for one machine and Python: ``pure`` with the native ``modules``."""
    shutil.rmtree(work, ignore_errors=True)
    output(*python("wheel", "unpack", "--dest", work, pure))
    (tree,) = work.iterdir()
    shutil.copytree(modules, tree, dirs_exist_ok=True)
    (about,) = tree.glob("*.dist-info/WHEEL")
    about.write_text(_retagged(about.read_text(), f"{abi.python}-{abi.abi}-{machine.platform}"))
    output(*python("wheel", "pack", "--dest-dir", into, tree))
    (wheel,) = into.glob(f"farandole-*-{abi.python}-{abi.abi}-{machine.platform}.whl")
    return wheel


def _retagged(about: str, tag: str) -> str:
    """The text of the file WHEEL, for a wheel that holds native modules."""
    about = re.sub(r"^Root-Is-Purelib: .*$", "Root-Is-Purelib: false", about, flags=re.MULTILINE)
    kept = [line for line in about.splitlines() if line and not line.startswith("Tag:")]
    return "\n".join([*kept, f"Tag: {tag}", ""])


def _pip_wheel(source: Path, into: Path, *options: str) -> None:
    run(
        *python("pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"),
        *options,
        "--wheel-dir",
        into,
        source,
    )
