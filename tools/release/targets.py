"""For whom wheels are built: machines, and versions of Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ABIS", "GLIBC", "MACHINES", "NEWEST", "Abi", "Machine"]

GLIBC: Final = (2, 28)
"""The oldest C library that the wheels run with: that of RHEL 8. Debian 10 and Ubuntu 20.04 are newer."""

NEWEST: Final = (3, 19)
"""As far as an interpreter is looked for. The stable ABI itself has no end."""


@dataclass(frozen=True)
class Machine:
    """``name``: as wheels, CMake and compilers call it. ``debian``: as Debian does."""

    name: str
    debian: str

    @property
    def platform(self) -> str:
        """The last part of a wheel's name."""
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.name}"

    @property
    def compiler_target(self) -> str:
        """What the compiler is asked to compile for."""
        return f"{self.name}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"


@dataclass(frozen=True)
class Abi:
    """What one native module serves: ``oldest`` alone, or with ``stable`` every Python from it on."""

    oldest: tuple[int, int]
    stable: bool = False

    @property
    def python(self) -> str:
        """The first part of the tag of a wheel: ``cp311``."""
        return f"cp{self.oldest[0]}{self.oldest[1]}"

    @property
    def abi(self) -> str:
        """The second part: ``cp311``, or ``abi3``."""
        return "abi3" if self.stable else self.python

    @property
    def cmake_name(self) -> str:
        """Value of ``FARANDOLE_PYTHON_ABI``."""
        return "abi3" if self.stable else f"cpython-{self.oldest[0]}{self.oldest[1]}"

    def serves(self, version: tuple[int, int]) -> bool:
        """Whether that Python loads the module; its headers can then compile it."""
        return version >= self.oldest if self.stable else version == self.oldest


MACHINES: Final = (Machine("x86_64", "amd64"), Machine("aarch64", "arm64"))

ABIS: Final = (Abi((3, 10)), Abi((3, 11)), Abi((3, 12), stable=True))
"""nanobind serves the stable ABI from Python 3.12 on; the two before it need modules of their own."""
