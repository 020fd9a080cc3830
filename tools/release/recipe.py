"""The steps of a release: tag, build, check, upload. docs/howto/release.md says when which is done."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tools.release import audit, distributions, headers
from tools.release.commands import output, python, run
from tools.release.compiler import native_modules
from tools.release.distributions import ROOT, WORK
from tools.release.targets import ABIS, MACHINES, Abi, Machine

__all__ = ["DIST", "RecipeError", "build", "check", "missing", "serves", "tag", "upload", "version"]

DIST = ROOT / "dist"
_BUILT_FROM = "commit"


class RecipeError(Exception):
    """A step cannot be done; the sentence says why and what to do first."""


def version() -> str:
    """The version of the package, which stands in ``pyproject.toml``."""
    (found,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def tag() -> str:
    """Tag the commit that is checked out as a release; returns the name of the tag. Nothing is pushed.

    Raises:
        RecipeError: files are changed, the tag exists, or the changelog does not know the version.
    """
    number = version()
    name = f"v{number}"
    if changed := output("git", "status", "--porcelain", cwd=ROOT).strip():
        raise RecipeError(f"A release is a commit, and files are not committed:\n{changed}")
    if not re.search(
        rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$", _text("CHANGELOG.md"), re.MULTILINE
    ):
        raise RecipeError(
            f'CHANGELOG.md has no heading "## [{number}] - DATE": move there what is unreleased.'
        )
    if output("git", "tag", "--list", name, cwd=ROOT).strip():
        raise RecipeError(f"The tag {name} exists. Raise the version in pyproject.toml for another release.")
    run("git", "tag", "--annotate", name, "--message", f"Farandole {number}", cwd=ROOT)
    return name


def build(
    includes: Mapping[str, Path], machines: tuple[Machine, ...] = MACHINES, abis: tuple[Abi, ...] = ABIS
) -> None:
    """Put the sources, the wheels and the name ``horovod`` into ``dist``, in place of what was there.

    Args:
        includes: folders with headers by the Python of a wheel's name: see :func:`headers.find`.

    Raises:
        HeadersError: a Python's headers are missing. Nothing was built then.
    """
    found = {abi: headers.find(abi, includes) for abi in abis}
    built_from = _commit()
    shutil.rmtree(DIST, ignore_errors=True)
    source = distributions.unpacked(distributions.source_distribution(DIST), WORK)
    pure = distributions.pure_wheel(source, WORK / "pure")
    for machine in machines:
        for abi, include in found.items():
            modules = native_modules(source, WORK / machine.name, machine, abi, include)
            wheel = distributions.native_wheel(pure, modules, machine, abi, WORK / "packing", DIST)
            print(f"made {wheel.name}, headers of {include}", flush=True)
    distributions.horovod_name(DIST)
    (WORK / _BUILT_FROM).write_text(built_from)


def check() -> None:
    """Look at everything in ``dist``: with our own rules, with auditwheel, and with twine as the index would.

    Raises:
        RecipeError: something is wrong with a file; the text says what.
    """
    files = sorted(DIST.iterdir())
    wrong = [
        text
        for file in files
        if file.name.startswith("farandole-") and file.suffix == ".whl"
        for text in _look(file)
    ]
    if wrong:
        raise RecipeError("\n".join(wrong))
    run(*python("twine", "check", "--strict"), *files)


def missing() -> list[str]:
    """Wheels of a whole release that are not in ``dist``."""
    names = [f"farandole-{version()}-{a.python}-{a.abi}-{m.platform}.whl" for m in MACHINES for a in ABIS]
    return [name for name in (*names, f"farandole-{version()}.tar.gz") if not (DIST / name).exists()]


def upload(really: bool) -> None:
    """Upload the package to the index that twine is set up for, or say how that is done.

    The name ``horovod`` is not among the files: it belongs to others there.

    Raises:
        RecipeError: a wheel is missing, or the commit that is checked out is not the one of the tag, or not
            the one that the wheels were built from.
    """
    if gone := missing():
        raise RecipeError(f"dist lacks {', '.join(gone)}: a release has all of them.")
    if f"v{version()}" not in output("git", "tag", "--points-at", "HEAD", cwd=ROOT).split():
        raise RecipeError(
            f"The commit that is checked out is not tagged v{version()}: what was built may be another."
        )
    note = WORK / _BUILT_FROM
    built_from = note.read_text() if note.exists() else "another place"
    if built_from != _commit():
        raise RecipeError(f"dist was built from {built_from}, and this is {_commit()}: make wheels again.")
    check()
    command = python("twine", "upload", *sorted(DIST.glob(f"farandole-{version()}*")))
    if really:
        run(*command)
    else:
        print("checked; to upload, add --really. It runs:", *command)


def _commit() -> str:
    """What is checked out; with a word if files are changed."""
    changed = output("git", "status", "--porcelain", cwd=ROOT).strip()
    return output("git", "rev-parse", "HEAD", cwd=ROOT).strip() + (" with changed files" if changed else "")


def _look(wheel: Path) -> list[str]:
    """What our rules and auditwheel find wrong with a wheel."""
    wrong = [f"{wheel.name}: {text}" for text in audit.problems(wheel)]
    told = output(*python("auditwheel", "show", wheel))
    platform = wheel.stem.rpartition("-")[2]
    granted = re.search(r'following platform tag:\s+"(\w+)"', told)
    if granted is None or not serves(granted[1], platform):
        wrong.append(f"{wheel.name}: auditwheel does not grant {platform}. It says:\n{told}")
    print(
        f"{wheel.name}: {wheel.stat().st_size} bytes, auditwheel says {granted[1] if granted else 'no'}",
        flush=True,
    )
    return wrong


def serves(granted: str, platform: str) -> bool:
    """Whether a wheel that auditwheel calls ``granted`` may be called ``platform``: of no newer C library."""
    one, other = (re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", name) for name in (granted, platform))
    if one is None or other is None or one[3] != other[3]:
        return False
    return (int(one[1]), int(one[2])) <= (int(other[1]), int(other[2]))


def _text(name: str) -> str:
    return (ROOT / name).read_text()
