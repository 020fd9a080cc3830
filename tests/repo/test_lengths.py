"""No function is longer than can be read at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 80

OPENS = re.compile(
    r"^( *)(?!(?:class|struct|enum|union|namespace|extern|template)\b|constexpr |const |static const )"
    r"(?:\S[^;]*)?\{$"
)
"""A line that may open the body of a function; tables begin with what is constant."""


def of_python(text: str) -> Iterator[tuple[str, int]]:
    """Functions and their lines, without those of their docstrings."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = ast.get_docstring(node, clean=False)
            yield node.name, node.end_lineno - node.lineno + 1 - (words.count("\n") + 1 if words else 0)  # type: ignore[operator]


def of_cpp(text: str) -> Iterator[tuple[str, int]]:
    """Functions, as clang-format leaves them: a statement with parentheses whose last line opens a brace, and
    what follows up to the brace below its first letter. Functions of a class are found in it as well.
    """
    lines = text.splitlines()
    for first, line in enumerate(lines):
        begun = OPENS.match(line)
        if begun is None:
            continue
        head = first
        while head > 0 and lines[head - 1] and not lines[head - 1].rstrip().endswith((";", "{", "}", ":")):
            head -= 1
        statement = " ".join(lines[head : first + 1])
        start = re.match(r" *", lines[head])
        if start is None or "(" not in statement or not OPENS.match(lines[head].partition("(")[0] + "{"):
            continue
        for last in range(first + 1, len(lines)):
            if lines[last].startswith(start[0] + "}"):
                yield statement.strip(), last - head + 1
            if lines[last] and not lines[last].startswith((start[0] + " ", "#")):
                break


def test_functions_are_short() -> None:
    long = [
        f"{file.relative_to(ROOT)}: {name} has {lines} lines"
        for folder, suffixes, functions in (("src", (".py",), of_python), ("core", (".cpp", ".h"), of_cpp))
        for file in sorted((ROOT / folder).rglob("*"))
        if file.suffix in suffixes
        for name, lines in functions(file.read_text())
        if lines > LIMIT
    ]
    assert long == []


@pytest.mark.parametrize(
    ("functions", "text", "found"),
    [
        (of_python, 'def f(\n    a,\n):\n    """One.\n\n    Two.\n    """\n    return a\n', [("f", 4)]),
        (of_cpp, "int f(int a,\n      int b) {\n  return a;\n}\n", [("int f(int a,       int b) {", 4)]),
        (of_cpp, "constexpr std::array kRows{\n    Row{1,\n        two(2)},\n};\n", []),
    ],
)
def test_functions_are_found(functions: object, text: str, found: list[tuple[str, int]]) -> None:
    assert callable(functions)
    assert list(functions(text)) == found
