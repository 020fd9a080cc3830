"""The messages that the page lists are messages of the sources: one that changes there is changed here."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
# What others say: Python, pip, ssh.
FOREIGN = {
    "No module named 'horovod'",
    "No module named 'horovod.…'",
    "No matching distribution found for horovod",
    "error: externally-managed-environment",
    "Host key verification failed",
    "No route to host",
}


def messages(page: str) -> list[str]:
    """The texts of the tables that have a column of that name."""
    found, listed = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            listed = False
        elif line.startswith("| text |"):
            listed = True
        elif listed and not line.startswith("|---"):
            found += re.findall(r"`([^`]+)`", line.strip("|").split(" | ")[0])
    return found


class Texts(ast.NodeVisitor):
    """The texts of a Python file; what an f-string fills in is `…`."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.found.append(
            "".join(each.value if isinstance(each, ast.Constant) else "…" for each in node.values)  # type: ignore[misc]
        )
        self.generic_visit(node)


@cache
def texts() -> str:
    """All texts of the sources, one a line."""
    python = Texts()
    for file in (ROOT / "src").rglob("*.py"):
        python.visit(ast.parse(file.read_text()))
    core = [file for file in (ROOT / "core").rglob("*") if file.suffix in {".cpp", ".h", ".inl"}]
    joined = (re.sub(r'"\s*\n\s*"', "", file.read_text()) for file in core)
    return "\n".join(each.replace("\n", " ") for each in [*python.found, *joined])


def test_the_page_has_messages() -> None:
    assert len(messages(PAGE.read_text())) > 30
    assert set(messages(PAGE.read_text())) >= FOREIGN


@pytest.mark.parametrize("message", sorted(set(messages(PAGE.read_text())) - FOREIGN))
def test_a_message_of_the_page_is_one_of_the_sources(message: str) -> None:
    parts = [part.strip() for part in message.split("…")]
    missing = [part for part in parts if part and part not in texts()]
    assert missing == []
    assert len("".join(parts)) >= 10, "too short to tell one message from another"


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert "did not call hvd.initialize() within" not in texts()
