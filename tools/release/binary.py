"""What a binary shows and needs, as ``readelf`` tells: it reads the files of every machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Binary"]

_MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}


@dataclass(frozen=True)
class Binary:
    """One shared object."""

    file: Path

    @cached_property
    def machine(self) -> str:
        """The machine it is for, as in the name of a wheel; in readelf's words, if it is not known here."""
        names: list[str] = re.findall(r"Machine:\s+(.+)", self._told("--file-header"))
        (name,) = names
        return _MACHINES.get(name, name)

    @cached_property
    def needed(self) -> list[str]:
        """The libraries that are loaded with it."""
        return re.findall(r"\(NEEDED\).*\[(.+)\]", self._told("--dynamic"))

    @cached_property
    def search_paths(self) -> list[str]:
        """Folders of the machine that built it, where libraries would be looked for."""
        return re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", self._told("--dynamic"))

    @cached_property
    def wanted(self) -> list[str]:
        """Symbols that others must define."""
        return [name for name, defined in self._symbols if not defined]

    @cached_property
    def shown(self) -> list[str]:
        """Symbols that it defines for others."""
        return sorted(name for name, defined in self._symbols if defined)

    @cached_property
    def glibc(self) -> tuple[int, ...]:
        """The newest version of the C library that one of its symbols is from; ``(0,)`` for none."""
        versions = re.findall(r"Name: GLIBC_(\d+(?:\.\d+)+)", self._told("--version-info"))
        return max((tuple(int(part) for part in version.split(".")) for version in versions), default=(0,))

    def wanted_since(self, glibc: tuple[int, ...]) -> list[str]:
        """Symbols that came into the C library after version ``glibc``, as ``name@GLIBC_2.34``."""
        names = re.findall(r"(\w+)@GLIBC_(\d+(?:\.\d+)+)", self._told("--dyn-syms"))
        newer = [f"{name}@GLIBC_{version}" for name, version in names if _numbers(version) > glibc]
        return sorted(set(newer))

    @cached_property
    def _symbols(self) -> list[tuple[str, bool]]:
        found = []
        for line in self._told("--dyn-syms").splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[0].rstrip(":").isdigit() and fields[4] != "LOCAL":
                found.append((fields[7].split("@")[0], fields[6] != "UND"))
        return found

    def _told(self, *options: str) -> str:
        tool = shutil.which("readelf")
        assert tool, "readelf is part of binutils, which every C++ compiler brings"
        command = [tool, "--wide", *options, str(self.file)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
