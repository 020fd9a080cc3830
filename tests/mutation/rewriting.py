"""Makes a source in which each point asks whether its mutant is the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tests.mutation.points import Point


@dataclass(frozen=True)
class Mutant:
    number: int
    file: str
    line: int
    text: str
    """What is mutated."""
    becomes: str
    source_line: str

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: `{self.text}` -> {self.becomes}    | {self.source_line}"


def rewrite(data: bytes, points: Sequence[Point], first: int, file: str) -> tuple[bytes, list[Mutant]]:
    """The instrumented text, with as many lines; mutants are numbered from `first`."""
    mutants: list[Mutant] = []
    lines = data.split(b"\n")
    # (offset, 0: ends here 1: operator 2: begins here 3: sign; then the inner one ends first and begins last)
    edits: list[tuple[int, int, int, int, int, bytes]] = []
    for point in points:
        number = first + len(mutants)
        line = data.count(b"\n", 0, point.begin) + 1
        for becomes in point.becomes:
            text = " ".join(data[point.begin : point.end].decode().split())
            mutants.append(
                Mutant(first + len(mutants), file, line, text, becomes, lines[line - 1].decode().strip())
            )
        length = point.end - point.begin
        if point.function == "kept":
            opening, closing = f"(::mutants::kept({number}) ? (void)(", ") : (void)0)"
        else:
            opening, closing = f"::mutants::{point.function}({number}, ", ")"
        edits.append((point.begin, 2, -length, point.rank, point.begin, opening.encode()))
        edits.append((point.end, 0, length, -point.rank, point.end, closing.encode()))
        if point.operator is not None:
            begin, end = point.operator
            edits.append((begin, 3, 0, 0, end, b"") if begin == point.begin else (begin, 1, 0, 0, end, b", "))
    out: list[bytes] = []
    at = 0
    for begin, _, _, _, end, replacement in sorted(edits):
        out += [data[at:begin], replacement]
        at = end
    out.append(data[at:])
    return b"".join(out), mutants
