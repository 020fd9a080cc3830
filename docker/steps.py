"""The instructions of a Dockerfile, stage by stage."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

INSTRUCTIONS = {
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "LABEL",
    "RUN",
    "USER",
    "WORKDIR",
}


@dataclass(frozen=True)
class Step:
    """``line`` is where it begins, from 1."""

    line: int
    instruction: str
    text: str


@dataclass
class Stage:
    """What stands below one ``FROM``."""

    name: str
    image: str
    steps: list[Step] = field(default_factory=list)


def steps(text: str) -> list[Step]:
    """The instructions of a file; lines that go on are joined.

    Raises:
        ValueError: an instruction that these tools do not know.
    """
    found: list[Step] = []
    held, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not held):
            continue
        begin = begin or number
        held += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        instruction, _, rest = held.strip().partition(" ")
        if instruction not in INSTRUCTIONS:
            raise ValueError(f"line {begin}: {instruction!r} is no instruction that is known here")
        found.append(Step(begin, instruction, re.sub(r"\s+", " ", rest).strip()))
        held, begin = "", 0
    return found


def stages(file: Path) -> list[Stage]:
    """The stages of a Dockerfile, in order; one without a name has its number for one."""
    found: list[Stage] = []
    for step in steps(file.read_text()):
        if step.instruction == "FROM":
            image, _, name = step.text.partition(" AS ")
            found.append(Stage(name or str(len(found)), image))
        else:
            found[-1].steps.append(step)
    return found
