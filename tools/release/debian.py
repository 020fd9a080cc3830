"""Folders with another Debian's programs, of this machine or of another one, to run wheels in.

Packages are fetched and unpacked, not installed: the system stays as it is, and any user can do it.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Tree", "tree"]

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Tree:
    """``root`` looks like the root of a Debian of a ``suite`` (trixie) and an ``architecture`` (arm64)."""

    root: Path
    suite: str
    architecture: str


def tree(into: Path, suite: str, architecture: str, packages: list[str]) -> Tree:
    """Unpack ``packages`` with all that they depend on; what was unpacked before stays.

    Raises:
        RuntimeError: this machine is no Debian, whose mirror and keys are taken.
        subprocess.CalledProcessError: apt-get could not fetch something, and has said what.
    """
    root = into / f"{suite}-{architecture}"
    done = root / "unpacked"
    wanted = "\n".join(packages)
    if not done.exists() or done.read_text() != wanted:
        apt = _apt(into / "apt" / f"{suite}-{architecture}", suite, architecture)
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.PIPE)
        options = ["--download-only", "--no-install-recommends", "--yes"]
        # base-files comes first: /lib and /bin are links in it.
        subprocess.run(
            [*apt, "install", *options, "base-files", *packages], check=True, stdout=subprocess.PIPE
        )
        archives = into / "apt" / f"{suite}-{architecture}" / "var/cache/apt/archives"
        for package in sorted(
            archives.glob("*.deb"), key=lambda file: not file.name.startswith("base-files")
        ):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
        done.write_text(wanted)
    return Tree(root, suite, architecture)


def _apt(folder: Path, suite: str, architecture: str) -> list[str]:
    """apt-get with lists and packages of its own in ``folder``. It knows one suite and installs nothing."""
    for name in (
        "etc/apt/preferences.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
        "var/lib/dpkg",
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "var/lib/dpkg/status").touch()
    sources = folder / "etc/apt/sources.list"
    sources.write_text(f"deb [signed-by={_KEYS}] {_mirror()} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": folder / "etc/apt/preferences.d",
        "Dir::State": folder / "var/lib/apt",
        "Dir::State::status": folder / "var/lib/dpkg/status",
        "Dir::Cache": folder / "var/cache/apt",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",  # the folder may be one that others cannot enter
    }
    return ["apt-get", "--quiet=2", *(f"-o{name}={value}" for name, value in settings.items())]


def _mirror() -> str:
    """Where this machine gets its packages."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        listed = ""
    for line in listed.splitlines():
        address, _, origin = line.partition(" ")
        if origin == "Debian Debian" and _KEYS.exists():
            return address
    raise RuntimeError("No mirror of Debian is known to apt-get here: this runs on Debian only.")
